`timescale 1ns / 1ns
module testbench;
  reg clk = 0;
  reg rst = 0;
  reg bit_in = 0;
  reg bit_valid = 0;
  wire found;
  wire [7:0] count;

  sequence_detector dut (
      .clk(clk), .rst(rst), .bit_in(bit_in), .bit_valid(bit_valid), .found(found), .count(count)
  );

  always #5 clk = ~clk;

  `include "checks.vh"

  // The model: the last four bits, and how many there were.
  reg [3:0] last = 0;
  integer seen = 0;
  integer total = 0;

  task cycle(input b, input v);
    begin
      bit_in = b;
      bit_valid = v;
      if (v) begin
        last = {last[2:0], b};
        seen = seen + 1;
        if (seen >= 4 && last == 4'b1011 && total < 255) total = total + 1;
      end
      @(negedge clk);
      check("found", seen >= 4 && last == 4'b1011, found);
      check("count", total, count);
    end
  endtask

  task restart;
    begin
      #1 rst = 1;
      #1 check("found", 0, found);
      check("count", 0, count);
      @(negedge clk);
      rst = 0;
      seen = 0;
      total = 0;
    end
  endtask

  integer i;
  integer seed = 41;
  reg [15:0] pattern;
  initial begin
    restart;
    pattern = 16'b1011011_10101011_0;
    for (i = 15; i >= 0; i = i - 1) cycle(pattern[i], 1);
    for (i = 0; i < 400; i = i + 1) cycle($random(seed), ({$random(seed)} % 4) != 0);
    // A reset after 101: the next 1 completes nothing.
    cycle(1, 1);
    cycle(0, 1);
    cycle(1, 1);
    restart;
    cycle(1, 1);
    cycle(1, 1);
    // Up to the largest count and beyond.
    for (i = 0; i < 800; i = i + 1) cycle((i % 3) != 0, 1);
    check("count", 255, count);
    restart;
    cycle(0, 1);
    finish;
  end
endmodule
