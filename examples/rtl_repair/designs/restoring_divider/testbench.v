`timescale 1ns / 1ns
module testbench;
  reg clk = 0;
  reg rst_n = 0;
  reg start = 0;
  reg [7:0] dividend = 0;
  reg [7:0] divisor = 0;
  wire [7:0] quotient;
  wire [7:0] remainder;
  wire by_zero;
  wire ready;

  restoring_divider dut (
      .clk(clk), .rst_n(rst_n), .start(start), .dividend(dividend), .divisor(divisor),
      .quotient(quotient), .remainder(remainder), .by_zero(by_zero), .ready(ready)
  );

  always #5 clk = ~clk;

  `include "checks.vh"

  reg [7:0] old_quotient = 0;
  reg [7:0] old_remainder = 0;
  integer i;

  task divide(input [7:0] n, input [7:0] d);
    begin
      dividend = n;
      divisor = d;
      start = 1;
      @(negedge clk);
      // Nothing that is applied now is read.
      dividend = ~n;
      divisor = 8'd3;
      for (i = 0; i < 8 && d != 0; i = i + 1) begin
        check("ready", 0, ready);
        check("by_zero", 0, by_zero);
        check("quotient", old_quotient, quotient);
        check("remainder", old_remainder, remainder);
        if (i == 6) start = 0;
        @(negedge clk);
      end
      start = 0;
      old_quotient = d == 0 ? 255 : n / d;
      old_remainder = d == 0 ? n : n % d;
      repeat (2) begin
        check("ready", 1, ready);
        check("by_zero", d == 0, by_zero);
        check("quotient", old_quotient, quotient);
        check("remainder", old_remainder, remainder);
        @(negedge clk);
      end
    end
  endtask

  integer k;
  integer seed = 59;
  initial begin
    @(negedge clk);
    check("ready", 1, ready);
    check("quotient", 0, quotient);
    check("remainder", 0, remainder);
    check("by_zero", 0, by_zero);
    rst_n = 1;
    divide(100, 7);
    divide(255, 1);
    divide(13, 0);
    divide(255, 255);
    divide(7, 200);
    divide(200, 129);
    divide(0, 9);
    divide(254, 128);
    for (k = 0; k < 40; k = k + 1) divide($random(seed), $random(seed) >> (k % 8));
    // An asynchronous reset in the middle.
    divide(8, 0);
    dividend = 250;
    divisor = 3;
    start = 1;
    @(negedge clk);
    start = 0;
    repeat (2) @(negedge clk);
    #1 rst_n = 0;
    #1 check("ready", 1, ready);
    check("quotient", 0, quotient);
    check("remainder", 0, remainder);
    check("by_zero", 0, by_zero);
    @(negedge clk);
    rst_n = 1;
    old_quotient = 0;
    old_remainder = 0;
    divide(77, 10);
    divide(8, 0);
    #1 rst_n = 0;
    #1 check("by_zero", 0, by_zero);
    finish;
  end
endmodule
