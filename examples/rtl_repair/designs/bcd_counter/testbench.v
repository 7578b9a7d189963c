`timescale 1ns / 1ns
module testbench;
  reg clk = 0;
  reg rst_n = 0;
  reg clear = 0;
  reg hold = 0;
  reg tick = 0;
  wire [3:0] ones;
  wire [3:0] tens;
  wire carry;

  bcd_counter dut (
      .clk(clk), .rst_n(rst_n), .clear(clear), .hold(hold), .tick(tick),
      .ones(ones), .tens(tens), .carry(carry)
  );

  always #5 clk = ~clk;

  `include "checks.vh"

  integer model = 0;

  task cycle(input c, input h, input t);
    begin
      clear = c;
      hold = h;
      tick = t;
      #1 check("carry", t && !h && !c && model == 99, carry);
      if (c) model = 0;
      else if (t && !h) model = (model + 1) % 100;
      @(negedge clk);
      check("ones", model % 10, ones);
      check("tens", model / 10, tens);
    end
  endtask

  integer i;
  integer seed = 11;
  initial begin
    repeat (2) @(negedge clk);
    rst_n = 1;
    for (i = 0; i < 215; i = i + 1) cycle(0, 0, 1);
    for (i = 0; i < 5; i = i + 1) cycle(0, 1, 1);
    cycle(1, 1, 1);
    for (i = 0; i < 99; i = i + 1) cycle(0, 0, 1);
    cycle(0, 1, 1);
    cycle(0, 0, 0);
    cycle(1, 0, 1);
    for (i = 0; i < 250; i = i + 1)
      cycle(({$random(seed)} % 50) == 0, ({$random(seed)} % 6) == 0, ({$random(seed)} % 4) != 0);
    // An asynchronous reset, without a clock edge.
    for (i = 0; i < 34; i = i + 1) cycle(0, 0, 1);
    #1 rst_n = 0;
    #1 check("ones", 0, ones);
    check("tens", 0, tens);
    @(negedge clk);
    rst_n = 1;
    model = 0;
    for (i = 0; i < 12; i = i + 1) cycle(0, 0, 1);
    finish;
  end
endmodule
