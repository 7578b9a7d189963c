`timescale 1ns / 1ns
module testbench;
  reg clk = 0;
  reg rst = 1;
  reg button = 0;
  wire level;
  wire pressed;
  wire released;
  wire [3:0] presses;

  debouncer #(.STABLE(6)) dut (
      .clk(clk), .rst(rst), .button(button),
      .level(level), .pressed(pressed), .released(released), .presses(presses)
  );

  always #5 clk = ~clk;

  `include "checks.vh"

  // The model: the raw samples, two clocks late.
  reg [1:0] past = 0;
  reg now;
  reg state = 0;
  integer run = 0;
  integer count = 0;
  reg rose;
  reg fell;

  task cycle(input b);
    begin
      button = b;
      now = past[1];
      past = {past[0], b};
      rose = 0;
      fell = 0;
      if (now == state) run = 0;
      else begin
        run = run + 1;
        if (run == 6) begin
          run = 0;
          state = now;
          rose = now;
          fell = !now;
          count = count + now;
        end
      end
      @(negedge clk);
      check("level", state, level);
      check("pressed", rose, pressed);
      check("released", fell, released);
      check("presses", count % 16, presses);
    end
  endtask

  integer i;
  integer j;
  integer seed = 83;
  initial begin
    repeat (3) @(negedge clk);
    check("level", 0, level);
    check("pressed", 0, pressed);
    check("released", 0, released);
    check("presses", 0, presses);
    rst = 0;
    // Runs of every length around the limit.
    for (i = 1; i < 10; i = i + 1) begin
      for (j = 0; j < i; j = j + 1) cycle(1);
      for (j = 0; j < i; j = j + 1) cycle(0);
      for (j = 0; j < 10; j = j + 1) cycle(0);
    end
    // Bounces: one clock the other way begins the count anew.
    for (i = 0; i < 30; i = i + 1) cycle((i % 6) != 5);
    for (i = 0; i < 10; i = i + 1) cycle(1);
    for (i = 0; i < 30; i = i + 1) cycle((i % 6) == 5);
    for (i = 0; i < 10; i = i + 1) cycle(0);
    for (i = 0; i < 20; i = i + 1) begin
      for (j = 0; j < 8; j = j + 1) cycle(1);
      for (j = 0; j < 8; j = j + 1) cycle(0);
    end
    for (i = 0; i < 300; i = i + 1) cycle(({$random(seed)} % 8) == 0 ? ~button : button);
    // A reset while the button is down.
    for (i = 0; i < 12; i = i + 1) cycle(1);
    rst = 1;
    @(negedge clk);
    check("level", 0, level);
    check("presses", 0, presses);
    rst = 0;
    past = 0;
    state = 0;
    run = 0;
    count = 0;
    for (i = 0; i < 10; i = i + 1) cycle(1);
    // A reset just before a press would be accepted.
    for (i = 0; i < 12; i = i + 1) cycle(0);
    for (i = 0; i < 7; i = i + 1) cycle(1);
    rst = 1;
    @(negedge clk);
    check("pressed", 0, pressed);
    rst = 0;
    past = 0;
    state = 0;
    run = 0;
    count = 0;
    for (i = 0; i < 10; i = i + 1) cycle(1);
    finish;
  end
endmodule
