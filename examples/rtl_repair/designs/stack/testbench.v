`timescale 1ns / 1ns
module testbench;
  reg clk = 0;
  reg rst = 1;
  reg push = 0;
  reg pop = 0;
  reg [7:0] data_in = 0;
  wire [7:0] top;
  wire [2:0] level;
  wire overflow;
  wire underflow;

  stack #(.WIDTH(8), .DEPTH(5)) dut (
      .clk(clk), .rst(rst), .push(push), .pop(pop), .data_in(data_in),
      .top(top), .level(level), .overflow(overflow), .underflow(underflow)
  );

  always #5 clk = ~clk;

  `include "checks.vh"

  reg [7:0] model [0:7];
  integer held = 0;
  reg over = 0;
  reg under = 0;

  task compare;
    begin
      check("level", held, level);
      check("top", held == 0 ? 0 : model[held - 1], top);
      check("overflow", over, overflow);
      check("underflow", under, underflow);
    end
  endtask

  task cycle(input a, input b, input [7:0] d);
    begin
      push = a;
      pop = b;
      data_in = d;
      if (b && held == 0) under = 1;
      if (b && held > 0) held = held - 1;
      if (a && held == 5) over = 1;
      else if (a) begin
        model[held] = d;
        held = held + 1;
      end
      @(negedge clk);
      compare;
    end
  endtask

  task reset;
    begin
      rst = 1;
      @(negedge clk);
      rst = 0;
      held = 0;
      over = 0;
      under = 0;
      compare;
    end
  endtask

  integer i;
  integer round;
  integer seed = 103;
  initial begin
    @(negedge clk);
    reset;
    for (i = 0; i < 5; i = i + 1) cycle(1, 0, 8'h10 + i);
    for (i = 0; i < 3; i = i + 1) cycle(1, 1, 8'h20 + i);
    for (i = 0; i < 5; i = i + 1) cycle(0, 1, 8'hff);
    cycle(1, 1, 8'h33);
    cycle(0, 1, 8'h34);
    reset;
    for (i = 0; i < 7; i = i + 1) cycle(1, 0, 8'h40 + i);
    for (i = 0; i < 7; i = i + 1) cycle(0, 1, 8'h00);
    // Short rounds, as the flags stay set until the reset.
    for (round = 0; round < 20; round = round + 1) begin
      push = $random(seed);
      pop = $random(seed);
      reset;
      for (i = 0; i < 20; i = i + 1)
        cycle(({$random(seed)} % 4) < (round[0] ? 3 : 2), ({$random(seed)} % 4) < 2, $random(seed));
    end
    finish;
  end
endmodule
