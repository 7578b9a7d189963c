`timescale 1ns / 1ns
module testbench;
  reg [7:0] a;
  reg [7:0] b;
  reg [2:0] op;
  wire [7:0] result;
  wire zero;
  wire negative;
  wire carry;
  wire overflow;

  alu dut (
      .a(a), .b(b), .op(op), .result(result), .zero(zero), .negative(negative), .carry(carry), .overflow(overflow)
  );

  `include "checks.vh"

  // The model counts with integers.
  integer signed_a;
  integer signed_b;
  integer exact;
  reg [7:0] want;
  reg want_carry;
  reg want_overflow;
  integer k;

  task try(input [7:0] x, input [7:0] y, input [2:0] o);
    begin
      a = x;
      b = y;
      op = o;
      signed_a = x < 128 ? x : x - 256;
      signed_b = y < 128 ? y : y - 256;
      want_carry = 0;
      want_overflow = 0;
      case (o)
        0, 1: begin
          exact = o ? signed_a - signed_b : signed_a + signed_b;
          want = exact;
          want_overflow = exact > 127 || exact < -128;
          want_carry = o ? x < y : x + y > 255;
        end
        2: want = x & y;
        3: want = x | y;
        4: want = x ^ y;
        5: want = signed_a < signed_b;
        6: begin
          want = x;
          for (k = 0; k < y[2:0]; k = k + 1) want = want * 2;
        end
        7: begin
          want = x;
          for (k = 0; k < y[2:0]; k = k + 1) want = {want[7], want[7:1]};
        end
      endcase
      #1 check("result", want, result);
      check("zero", want == 0, zero);
      check("negative", want >= 128, negative);
      check("carry", want_carry, carry);
      check("overflow", want_overflow, overflow);
    end
  endtask

  integer i;
  integer j;
  integer seed = 43;
  initial begin
    for (i = 0; i < 8; i = i + 1) begin
      try(8'h00, 8'h00, i);
      try(8'h7f, 8'h01, i);
      try(8'h80, 8'h01, i);
      try(8'h80, 8'h80, i);
      try(8'hff, 8'h01, i);
      try(8'h01, 8'hff, i);
      try(8'h80, 8'h7f, i);
      try(8'h7f, 8'h80, i);
      for (j = 0; j < 60; j = j + 1) try($random(seed), $random(seed), i);
    end
    finish;
  end
endmodule
