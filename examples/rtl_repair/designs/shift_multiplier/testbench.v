`timescale 1ns / 1ns
module testbench;
  reg clk = 0;
  reg rst_n = 0;
  reg start = 0;
  reg [7:0] a = 0;
  reg [7:0] b = 0;
  wire busy;
  wire done;
  wire [15:0] product;

  shift_multiplier dut (
      .clk(clk), .rst_n(rst_n), .start(start), .a(a), .b(b), .busy(busy), .done(done), .product(product)
  );

  always #5 clk = ~clk;

  `include "checks.vh"

  reg [15:0] before = 0;
  integer i;

  task multiply(input [7:0] x, input [7:0] y);
    begin
      a = x;
      b = y;
      start = 1;
      @(negedge clk);
      a = ~x;
      b = y + 1;
      for (i = 0; i < 8; i = i + 1) begin
        check("busy", 1, busy);
        check("done", 0, done);
        check("product", before, product);
        start = i < 4;
        @(negedge clk);
      end
      before = x * y;
      check("busy", 0, busy);
      check("done", 1, done);
      check("product", before, product);
    end
  endtask

  integer k;
  integer seed = 53;
  initial begin
    repeat (2) @(negedge clk);
    check("busy", 0, busy);
    check("done", 0, done);
    check("product", 0, product);
    rst_n = 1;
    multiply(3, 5);
    @(negedge clk);
    check("done", 0, done);
    check("product", 15, product);
    multiply(255, 255);
    multiply(0, 77);
    multiply(128, 1);
    multiply(1, 128);
    for (k = 0; k < 40; k = k + 1) begin
      multiply($random(seed), $random(seed));
      if (k[0]) begin
        @(negedge clk);
        check("done", 0, done);
        check("busy", 0, busy);
      end
    end
    // A reset stops a multiplication.
    a = 9;
    b = 9;
    start = 1;
    @(negedge clk);
    start = 0;
    repeat (3) @(negedge clk);
    rst_n = 0;
    @(negedge clk);
    check("busy", 0, busy);
    check("product", 0, product);
    rst_n = 1;
    before = 0;
    repeat (9) begin
      @(negedge clk);
      check("done", 0, done);
    end
    multiply(12, 11);
    finish;
  end
endmodule
