`timescale 1ns / 1ns
module testbench;
  reg clk = 0;
  reg rst_n = 1;
  reg valid = 0;
  reg signed [7:0] sample = 0;
  wire average_valid;
  wire signed [7:0] average;
  wire signed [7:0] peak;

  moving_average dut (
      .clk(clk), .rst_n(rst_n), .valid(valid), .sample(sample),
      .average_valid(average_valid), .average(average), .peak(peak)
  );

  always #5 clk = ~clk;

  `include "checks.vh"

  integer history [0:3];
  integer total;
  integer want = 0;
  integer best = -128;
  integer next_best = -128;
  integer k;
  reg [7:0] bits;

  task cycle(input v, input signed [7:0] s);
    begin
      valid = v;
      sample = s;
      best = next_best;
      if (v) begin
        for (k = 3; k > 0; k = k - 1) history[k] = history[k - 1];
        history[0] = s;
        total = history[0] + history[1] + history[2] + history[3];
        // Division truncates, so negative sums are moved down first.
        want = total < 0 ? (total - 3) / 4 : total / 4;
        if (want > best) next_best = want;
      end
      @(negedge clk);
      check("average_valid", v, average_valid);
      bits = want;
      check("average", bits, {56'd0, average});
      bits = best;
      check("peak", bits, {56'd0, peak});
    end
  endtask

  task reset;
    begin
      #1 rst_n = 0;
      for (k = 0; k < 4; k = k + 1) history[k] = 0;
      want = 0;
      best = -128;
      next_best = -128;
      #1 check("average", 0, {56'd0, average});
      check("average_valid", 0, average_valid);
      check("peak", 8'h80, {56'd0, peak});
      @(negedge clk);
      rst_n = 1;
    end
  endtask

  integer i;
  integer seed = 97;
  initial begin
    @(negedge clk);
    reset;
    cycle(0, 55);
    for (i = 0; i < 6; i = i + 1) cycle(1, -100);
    for (i = 0; i < 6; i = i + 1) cycle(1, -3);
    cycle(0, 100);
    cycle(1, 1);
    cycle(1, 2);
    for (i = 0; i < 5; i = i + 1) cycle(1, 127);
    for (i = 0; i < 5; i = i + 1) cycle(1, -128);
    reset;
    for (i = 0; i < 200; i = i + 1) cycle(({$random(seed)} % 4) != 0, $random(seed));
    // Small samples, so that a new peak is close to the one before.
    reset;
    for (i = 0; i < 100; i = i + 1) cycle(1, ({$random(seed)} % 9) - 6 + i / 20);
    // A reset wherever the window is full.
    reset;
    cycle(1, 4);
    cycle(1, 0);
    cycle(1, 0);
    cycle(1, 0);
    cycle(1, 0);
    finish;
  end
endmodule
