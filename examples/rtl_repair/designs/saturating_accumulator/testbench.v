`timescale 1ns / 1ns
module testbench;
  reg clk = 0;
  reg rst = 1;
  reg clear = 0;
  reg enable = 0;
  reg subtract = 0;
  reg signed [7:0] value = 0;
  wire signed [11:0] total;
  wire saturated;
  wire [11:0] magnitude;

  saturating_accumulator dut (
      .clk(clk), .rst(rst), .clear(clear), .enable(enable), .subtract(subtract), .value(value),
      .total(total), .saturated(saturated), .magnitude(magnitude)
  );

  always #5 clk = ~clk;

  `include "checks.vh"

  integer model = 0;
  reg over = 0;
  reg [11:0] bits;

  task compare;
    begin
      bits = model;
      check("total", bits, {52'd0, total});
      check("saturated", over, saturated);
      check("magnitude", model < 0 ? -model : model, magnitude);
    end
  endtask

  task cycle(input c, input e, input s, input signed [7:0] v);
    begin
      clear = c;
      enable = e;
      subtract = s;
      value = v;
      if (c) begin
        model = 0;
        over = 0;
      end else if (e) begin
        model = s ? model - v : model + v;
        if (model > 2047 || model < -2048) begin
          over = 1;
          model = model > 0 ? 2047 : -2048;
        end
      end
      @(negedge clk);
      compare;
    end
  endtask

  integer i;
  integer seed = 101;
  initial begin
    repeat (2) @(negedge clk);
    compare;
    rst = 0;
    for (i = 0; i < 16; i = i + 1) cycle(0, 1, 0, 127);
    // 2032: one step to the largest, and one beyond.
    cycle(0, 1, 0, 15);
    cycle(0, 1, 0, 1);
    cycle(0, 1, 0, 127);
    cycle(0, 1, 1, 127);
    cycle(1, 1, 0, 5);
    for (i = 0; i < 16; i = i + 1) cycle(0, 1, 0, -128);
    cycle(0, 1, 1, 1);
    cycle(0, 1, 1, -128);
    cycle(1, 0, 0, 0);
    for (i = 0; i < 18; i = i + 1) cycle(0, 1, 1, -128);
    cycle(0, 0, 0, 99);
    for (i = 0; i < 300; i = i + 1)
      cycle(({$random(seed)} % 60) == 0, ({$random(seed)} % 5) != 0, i[5], ($random(seed) & 63) + (i[6] ? 30 : -60));
    cycle(0, 1, 0, 100);
    enable = 1;
    rst = 1;
    @(negedge clk);
    model = 0;
    over = 0;
    compare;
    finish;
  end
endmodule
