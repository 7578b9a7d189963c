`timescale 1ns / 1ns
module testbench;
  reg clk = 0;
  reg rst = 0;
  reg clear = 0;
  reg enable = 0;
  reg data_bit = 0;
  wire [7:0] crc;
  wire [7:0] bits;
  wire match;

  crc8 dut (
      .clk(clk), .rst(rst), .clear(clear), .enable(enable), .data_bit(data_bit),
      .crc(crc), .bits(bits), .match(match)
  );

  always #5 clk = ~clk;

  `include "checks.vh"

  reg [7:0] model = 0;
  integer taken = 0;

  task compare;
    begin
      check("crc", model, crc);
      check("bits", taken % 256, bits);
      check("match", taken > 0 && model == 0, match);
    end
  endtask

  // The model divides by the whole polynomial of nine bits.
  task cycle(input c, input e, input d);
    reg [8:0] dividend;
    begin
      clear = c;
      enable = e;
      data_bit = d;
      if (c) begin
        model = 0;
        taken = 0;
      end else if (e) begin
        dividend = {model, 1'b0} ^ {d, 8'h00};
        if (dividend[8]) dividend = dividend ^ 9'h107;
        model = dividend;
        taken = taken + 1;
      end
      @(negedge clk);
      compare;
    end
  endtask

  task byte_of(input [7:0] value);
    integer k;
    for (k = 7; k >= 0; k = k - 1) cycle(0, 1, value[k]);
  endtask

  task reset;
    begin
      #1 rst = 1;
      model = 0;
      taken = 0;
      #1 compare;
      @(negedge clk);
      rst = 0;
    end
  endtask

  integer i;
  integer seed = 67;
  initial begin
    reset;
    // The usual check value: the CRC of the digits 1 to 9 is f4.
    for (i = 1; i <= 9; i = i + 1) byte_of("0" + i);
    check("crc_of_digits", 8'hf4, crc);
    byte_of(8'hf4);
    check("match", 1, match);
    cycle(0, 0, 1);
    cycle(1, 1, 1);
    for (i = 0; i < 5; i = i + 1) cycle(0, 1, 0);
    for (i = 0; i < 600; i = i + 1)
      cycle(({$random(seed)} % 300) == 0, ({$random(seed)} % 8) != 0, $random(seed));
    reset;
    byte_of(8'h80);
    finish;
  end
endmodule
