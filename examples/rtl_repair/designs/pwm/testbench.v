`timescale 1ns / 1ns
module testbench;
  reg clk = 0;
  reg rst_n = 0;
  reg enable = 0;
  reg [4:0] duty = 0;
  wire out;
  wire period_start;

  pwm #(.PERIOD(10)) dut (
      .clk(clk), .rst_n(rst_n), .enable(enable), .duty(duty), .out(out), .period_start(period_start)
  );

  always #5 clk = ~clk;

  `include "checks.vh"

  integer phase = 0;
  integer width = 0;

  task cycle(input e, input [4:0] d);
    begin
      enable = e;
      duty = d;
      #1 check("out", e && phase < width, out);
      check("period_start", e && phase == 0, period_start);
      if (!e || phase == 9) begin
        phase = 0;
        width = d;
      end else begin
        phase = phase + 1;
      end
      @(negedge clk);
      check("out_after", e && phase < width, out);
    end
  endtask

  integer i;
  integer j;
  integer seed = 79;
  initial begin
    repeat (2) @(negedge clk);
    rst_n = 1;
    // After the reset the duty is 0 until the first period is over.
    for (i = 0; i < 10; i = i + 1) cycle(1, 5'd31);
    for (j = 0; j < 13; j = j + 1)
      for (i = 0; i < 10; i = i + 1) cycle(1, j);
    for (i = 0; i < 40; i = i + 1) cycle(1, $random(seed));
    cycle(1, 5);
    for (i = 0; i < 3; i = i + 1) cycle(0, 7);
    for (i = 0; i < 25; i = i + 1) cycle(1, 4);
    for (i = 0; i < 400; i = i + 1) cycle(({$random(seed)} % 30) != 0, {$random(seed)} % 12);
    cycle(0, 9);
    cycle(1, 9);
    cycle(1, 9);
    cycle(1, 9);
    #1 rst_n = 0;
    #1 check("out", 0, out);
    check("period_start", 1, period_start);
    @(negedge clk);
    rst_n = 1;
    phase = 0;
    width = 0;
    for (i = 0; i < 20; i = i + 1) cycle(1, 2);
    finish;
  end
endmodule
