`timescale 1ns / 1ns
module testbench;
  reg clk = 0;
  reg rst = 1;
  reg car = 0;
  reg button = 0;
  wire [1:0] main_light;
  wire [1:0] side_light;
  wire walk;

  traffic_light #(.GREEN(8), .YELLOW(3), .ALL_RED(2)) dut (
      .clk(clk), .rst(rst), .car(car), .button(button),
      .main_light(main_light), .side_light(side_light), .walk(walk)
  );

  always #5 clk = ~clk;

  `include "checks.vh"

  // The model: how long ago the main road's green ended, or how long it has lasted.
  integer age = 0;
  reg leaving = 0;
  reg asked = 0;
  reg guided = 0;
  integer main_want;
  integer side_want;

  task compare;
    begin
      main_want = !leaving ? 2 : age < 3 ? 1 : 0;
      side_want = leaving && age >= 5 && age < 13 ? 2 : leaving && age >= 13 && age < 16 ? 1 : 0;
      check("main_light", main_want, main_light);
      check("side_light", side_want, side_light);
      check("walk", guided && side_want == 2, walk);
    end
  endtask

  task cycle(input c, input b);
    begin
      car = c;
      button = b;
      if (!leaving) begin
        if (age >= 7 && (c || asked)) begin
          leaving = 1;
          age = 0;
        end else begin
          age = age + 1;
        end
        if (b) asked = 1;
      end else begin
        age = age + 1;
        if (age == 5) begin
          guided = asked;
          asked = b;
        end else if (b) begin
          asked = 1;
        end
        if (age == 18) begin
          leaving = 0;
          age = 0;
        end
      end
      @(negedge clk);
      compare;
    end
  endtask

  integer i;
  integer seed = 31;
  initial begin
    repeat (2) @(negedge clk);
    compare;
    rst = 0;
    // Nobody comes: the main road stays green.
    for (i = 0; i < 40; i = i + 1) cycle(0, 0);
    for (i = 0; i < 60; i = i + 1) cycle(1, 0);
    // A pedestrian alone, pressing for one clock.
    for (i = 0; i < 30; i = i + 1) cycle(0, 0);
    cycle(0, 1);
    for (i = 0; i < 40; i = i + 1) cycle(0, 0);
    for (i = 0; i < 500; i = i + 1) cycle(({$random(seed)} % 9) == 0, ({$random(seed)} % 21) == 0);
    // A press at each clock around the turn to the side road's green, one after the other.
    for (i = 0; i < 240; i = i + 1) cycle(1, i % 25 == 3);
    // A reset forgets the press.
    cycle(0, 1);
    cycle(1, 0);
    car = 0;
    button = 0;
    rst = 1;
    @(negedge clk);
    rst = 0;
    age = 0;
    leaving = 0;
    asked = 0;
    guided = 0;
    compare;
    for (i = 0; i < 20; i = i + 1) cycle(0, 0);
    for (i = 0; i < 20; i = i + 1) cycle(1, 0);
    finish;
  end
endmodule
