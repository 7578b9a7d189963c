`timescale 1ns / 1ns
module testbench;
  reg clk = 0;
  reg rst_n = 0;
  reg init = 0;
  reg valid = 0;
  reg last = 0;
  reg [7:0] data = 0;
  wire [15:0] crc;
  wire ready;
  wire [15:0] result;

  crc16 dut (
      .clk(clk), .rst_n(rst_n), .init(init), .valid(valid), .last(last), .data(data),
      .crc(crc), .ready(ready), .result(result)
  );

  always #5 clk = ~clk;

  `include "checks.vh"

  reg [15:0] model = 16'hffff;
  reg [15:0] model_result = 0;
  reg model_ready;
  integer k;

  task cycle(input i, input v, input l, input [7:0] d);
    begin
      init = i;
      valid = v;
      last = l;
      data = d;
      model_ready = 0;
      if (i) model = 16'hffff;
      else if (v) begin
        // Bit by bit, each compared with the bit that leaves the register.
        for (k = 7; k >= 0; k = k - 1)
          if (model[15] != d[k]) model = (model << 1) ^ 16'h1021;
          else model = model << 1;
        if (l) begin
          model_ready = 1;
          model_result = model;
        end
      end
      @(negedge clk);
      check("crc", model, crc);
      check("ready", model_ready, ready);
      check("result", model_result, result);
    end
  endtask

  integer n;
  integer seed = 71;
  initial begin
    repeat (2) @(negedge clk);
    check("crc", 16'hffff, crc);
    check("ready", 0, ready);
    check("result", 0, result);
    rst_n = 1;
    // The usual check value: the CRC of the digits 1 to 9 is 29b1.
    for (n = 1; n <= 9; n = n + 1) cycle(0, 1, n == 9, "0" + n);
    check("crc_of_digits", 16'h29b1, result);
    cycle(0, 0, 1, 8'h55);
    cycle(1, 1, 1, 8'h55);
    for (n = 0; n < 300; n = n + 1)
      cycle(({$random(seed)} % 12) == 0, ({$random(seed)} % 4) != 0, ({$random(seed)} % 6) == 0, $random(seed));
    cycle(0, 1, 1, 8'h31);
    rst_n = 0;
    @(negedge clk);
    check("crc", 16'hffff, crc);
    check("ready", 0, ready);
    check("result", 0, result);
    rst_n = 1;
    model = 16'hffff;
    model_result = 0;
    cycle(0, 1, 0, 8'h00);
    finish;
  end
endmodule
