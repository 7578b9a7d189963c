`timescale 1ns / 1ns
module testbench;
  reg clk = 0;
  reg rst = 1;
  reg load = 0;
  reg [15:0] seed = 0;
  reg step = 0;
  wire [15:0] state;
  wire bit_out;
  wire wrapped;

  lfsr dut (
      .clk(clk), .rst(rst), .load(load), .seed(seed), .step(step),
      .state(state), .bit_out(bit_out), .wrapped(wrapped)
  );

  always #5 clk = ~clk;

  `include "checks.vh"

  integer model = 1;
  integer parity;

  task cycle(input l, input [15:0] value, input s);
    begin
      load = l;
      seed = value;
      step = s;
      if (l) model = value == 0 ? 1 : value;
      else if (s) begin
        parity = (model + model / 4 + model / 8 + model / 32) % 2;
        model = model / 2 + parity * 32768;
      end
      @(negedge clk);
      check("state", model, state);
      check("bit_out", model % 2, bit_out);
    end
  endtask

  integer i;
  integer random = 73;
  initial begin
    repeat (2) @(negedge clk);
    check("state", 1, state);
    check("wrapped", 0, wrapped);
    rst = 0;
    for (i = 0; i < 100; i = i + 1) begin
      cycle(0, 16'hffff, 1);
      check("wrapped", 0, wrapped);
    end
    cycle(1, 16'h0000, 1);
    cycle(0, 0, 1);
    cycle(1, 16'hace1, 1);
    for (i = 0; i < 200; i = i + 1)
      cycle(({$random(random)} % 40) == 0, $random(random), ({$random(random)} % 4) != 0);
    // A step backward from the origin, by hand: the register is set to what comes before it.
    cycle(1, 16'hb0b5, 0);
    check("wrapped", 0, wrapped);
    force dut.state = 16'h616b;
    #1 release dut.state;
    model = 16'h616b;
    cycle(0, 0, 0);
    check("wrapped", 0, wrapped);
    cycle(0, 0, 1);
    check("state", 16'hb0b5, state);
    check("wrapped", 1, wrapped);
    cycle(0, 0, 0);
    check("wrapped", 1, wrapped);
    cycle(0, 0, 1);
    check("wrapped", 0, wrapped);
    rst = 1;
    load = 1;
    seed = 16'h1234;
    @(negedge clk);
    check("state", 1, state);
    check("wrapped", 0, wrapped);
    rst = 0;
    model = 1;
    force dut.state = 16'h0002;
    #1 release dut.state;
    model = 2;
    cycle(0, 0, 1);
    check("wrapped", 1, wrapped);
    cycle(1, 16'h0001, 0);
    check("wrapped", 0, wrapped);
    rst = 1;
    @(negedge clk);
    check("wrapped", 0, wrapped);
    finish;
  end
endmodule
