`timescale 1ns / 1ns
module testbench;
  reg clk = 0;
  reg rst_n = 1;
  reg enable = 0;
  reg kick = 0;
  reg restart = 0;
  wire bite;
  wire [1:0] cause;
  wire warning;

  watchdog_timer #(.OPEN(5), .WARN(12), .LIMIT(16)) dut (
      .clk(clk), .rst_n(rst_n), .enable(enable), .kick(kick), .restart(restart),
      .bite(bite), .cause(cause), .warning(warning)
  );

  always #5 clk = ~clk;

  `include "checks.vh"

  // The model counts down to the end instead of up.
  integer left = 15;
  integer why = 0;

  task compare;
    begin
      check("bite", why != 0, bite);
      check("cause", why, cause);
      check("warning", why == 0 && left <= 3, warning);
    end
  endtask

  task cycle(input e, input k, input r);
    begin
      enable = e;
      kick = k;
      restart = r;
      if (r) begin
        left = 15;
        why = 0;
      end else if (e && why == 0) begin
        if (k && left > 10) why = 1;
        else if (k) left = 15;
        else if (left == 0) why = 2;
        else left = left - 1;
      end
      @(negedge clk);
      compare;
    end
  endtask

  task reset;
    begin
      #1 rst_n = 0;
      left = 15;
      why = 0;
      #1 compare;
      @(negedge clk);
      rst_n = 1;
    end
  endtask

  integer i;
  integer j;
  integer seed = 131;
  initial begin
    @(negedge clk);
    reset;
    // A kick after every number of clocks.
    for (i = 0; i < 20; i = i + 1) begin
      cycle(0, 0, 1);
      for (j = 0; j < i; j = j + 1) cycle(1, 0, 0);
      cycle(1, 1, 0);
      cycle(1, 0, 0);
      cycle(1, 1, 0);
    end
    reset;
    for (i = 0; i < 30; i = i + 1) cycle(1, (i % 10) == 9, 0);
    for (i = 0; i < 30; i = i + 1) cycle(i[0], 0, 0);
    cycle(0, 1, 0);
    reset;
    for (i = 0; i < 600; i = i + 1)
      cycle(({$random(seed)} % 8) != 0, ({$random(seed)} % 12) == 0, ({$random(seed)} % 40) == 0);
    cycle(1, 0, 1);
    cycle(1, 1, 0);
    reset;
    cycle(1, 1, 1);
    for (i = 0; i < 13; i = i + 1) cycle(1, 0, 0);
    reset;
    finish;
  end
endmodule
