`timescale 1ns / 1ns
module testbench;
  reg clk = 0;
  reg rst = 1;
  reg enable = 0;
  reg forward = 1;
  wire [3:0] gray;
  wire [3:0] binary;
  wire half;

  gray_counter #(.WIDTH(4)) dut (
      .clk(clk), .rst(rst), .enable(enable), .forward(forward), .gray(gray), .binary(binary), .half(half)
  );

  always #5 clk = ~clk;

  `include "checks.vh"

  reg [3:0] model = 0;
  reg [3:0] code;

  task compare;
    begin
      // The codes as a table, so that the model has no formula in common with the design.
      case (model)
        0: code = 4'b0000;
        1: code = 4'b0001;
        2: code = 4'b0011;
        3: code = 4'b0010;
        4: code = 4'b0110;
        5: code = 4'b0111;
        6: code = 4'b0101;
        7: code = 4'b0100;
        8: code = 4'b1100;
        9: code = 4'b1101;
        10: code = 4'b1111;
        11: code = 4'b1110;
        12: code = 4'b1010;
        13: code = 4'b1011;
        14: code = 4'b1001;
        15: code = 4'b1000;
      endcase
      check("gray", code, gray);
      check("binary", model, binary);
      check("half", model >= 8, half);
    end
  endtask

  integer i;
  integer seed = 3;
  initial begin
    repeat (2) @(negedge clk);
    compare;
    rst = 0;
    // More than a whole turn forward, one backward, and then either way.
    for (i = 0; i < 150; i = i + 1) begin
      enable = i < 20 || ({$random(seed)} % 3) != 0;
      forward = i < 40 || (i >= 80 && ({$random(seed)} % 2) != 0);
      if (enable) model = forward ? model + 1 : model - 1;
      @(negedge clk);
      compare;
    end
    // A reset beats the enable, and takes effect at the clock edge only.
    enable = 1;
    forward = 1;
    rst = 1;
    #1 compare;
    @(negedge clk);
    model = 0;
    compare;
    rst = 0;
    @(negedge clk);
    model = 1;
    compare;
    finish;
  end
endmodule
