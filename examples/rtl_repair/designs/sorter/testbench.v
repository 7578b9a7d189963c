`timescale 1ns / 1ns
module testbench;
  reg clk = 0;
  reg rst_n = 0;
  reg valid_in = 0;
  reg descending = 0;
  reg [7:0] in_0 = 0;
  reg [7:0] in_1 = 0;
  reg [7:0] in_2 = 0;
  reg [7:0] in_3 = 0;
  wire valid_out;
  wire [7:0] out_0;
  wire [7:0] out_1;
  wire [7:0] out_2;
  wire [7:0] out_3;

  sorter dut (
      .clk(clk), .rst_n(rst_n), .valid_in(valid_in), .descending(descending),
      .in_0(in_0), .in_1(in_1), .in_2(in_2), .in_3(in_3),
      .valid_out(valid_out), .out_0(out_0), .out_1(out_1), .out_2(out_2), .out_3(out_3)
  );

  always #5 clk = ~clk;

  `include "checks.vh"

  // The model sorts at once, and delays the result by three clocks.
  reg [7:0] bytes [0:3];
  reg [7:0] swap;
  reg [2:0] valids = 0;
  reg [95:0] words = 0;
  integer i;
  integer j;

  task cycle(input v, input d, input [31:0] group);
    begin
      valid_in = v;
      descending = d;
      {in_3, in_2, in_1, in_0} = group;
      for (i = 0; i < 4; i = i + 1) bytes[i] = group >> (8 * i);
      for (i = 0; i < 4; i = i + 1)
        for (j = 0; j < 3; j = j + 1)
          if (d ? bytes[j] < bytes[j + 1] : bytes[j] > bytes[j + 1]) begin
            swap = bytes[j];
            bytes[j] = bytes[j + 1];
            bytes[j + 1] = swap;
          end
      words = {words[63:0], bytes[3], bytes[2], bytes[1], bytes[0]};
      valids = {valids[1:0], v};
      @(negedge clk);
      check("valid_out", valids[2], valid_out);
      if (valids[2]) begin
        check("out_0", words[71:64], out_0);
        check("out_1", words[79:72], out_1);
        check("out_2", words[87:80], out_2);
        check("out_3", words[95:88], out_3);
      end
    end
  endtask

  integer k;
  integer seed = 107;
  initial begin
    repeat (4) @(negedge clk);
    check("valid_out", 0, valid_out);
    rst_n = 1;
    // Every order of four different bytes, and every pattern of equal ones.
    for (k = 0; k < 256; k = k + 1)
      cycle(1, k[0] ^ k[3], {6'd9, k[7:6], 6'd9, k[5:4], 6'd9, k[3:2], 6'd9, k[1:0]});
    for (k = 0; k < 60; k = k + 1) cycle($random(seed), $random(seed), $random(seed));
    // A reset with three groups on their way.
    for (k = 0; k < 3; k = k + 1) cycle(1, 0, $random(seed));
    rst_n = 0;
    @(negedge clk);
    check("valid_out", 0, valid_out);
    rst_n = 1;
    valids = 0;
    for (k = 0; k < 4; k = k + 1) cycle(0, 0, 0);
    finish;
  end
endmodule
