`timescale 1ns / 1ns
module testbench;
  reg clk = 0;
  reg rst_n = 1;
  reg enable = 0;
  reg up = 1;
  reg load = 0;
  reg [3:0] load_value = 0;
  wire [3:0] count;
  wire wrapped;

  counter #(.WIDTH(4), .LIMIT(11)) dut (
      .clk(clk), .rst_n(rst_n), .enable(enable), .up(up), .load(load), .load_value(load_value),
      .count(count), .wrapped(wrapped)
  );

  always #5 clk = ~clk;

  `include "checks.vh"

  // The model: a plain integer.
  integer model = 0;
  reg model_wrapped = 0;
  task step;
    begin
      model_wrapped = 0;
      if (load) model = load_value;
      else if (enable && up) begin
        model_wrapped = model == 11;
        model = model == 11 ? 0 : model + 1;
      end else if (enable) begin
        model_wrapped = model == 0;
        model = model == 0 ? 11 : model - 1;
      end
      @(negedge clk);
      check("count", model, count);
      check("wrapped", model_wrapped, wrapped);
    end
  endtask

  integer i;
  integer seed = 1;
  initial begin
    // Reset works between clock edges.
    @(negedge clk);
    #1 rst_n = 0;
    #1 check("count", 0, count);
    check("wrapped", 0, wrapped);
    @(negedge clk) rst_n = 1;
    enable = 1;
    for (i = 0; i < 30; i = i + 1) step;
    up = 0;
    for (i = 0; i < 30; i = i + 1) step;
    enable = 0;
    for (i = 0; i < 3; i = i + 1) step;
    for (i = 0; i < 200; i = i + 1) begin
      enable = $random(seed);
      up = $random(seed);
      load = ($random(seed) & 7) == 0;
      load_value = {$random(seed)} % 12;
      step;
    end
    // A reset while it counts.
    load = 1;
    load_value = 9;
    step;
    #1 rst_n = 0;
    #1 check("count", 0, count);
    #1 finish;
  end
endmodule
