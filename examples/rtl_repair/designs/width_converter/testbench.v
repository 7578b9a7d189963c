`timescale 1ns / 1ns
module testbench;
  reg clk = 0;
  reg rst = 1;
  reg in_valid = 0;
  wire in_ready;
  reg [7:0] in_data = 0;
  reg in_last = 0;
  wire out_valid;
  reg out_ready = 0;
  wire [31:0] out_data;
  wire [3:0] out_keep;
  wire out_last;

  width_converter dut (
      .clk(clk), .rst(rst), .in_valid(in_valid), .in_ready(in_ready), .in_data(in_data), .in_last(in_last),
      .out_valid(out_valid), .out_ready(out_ready), .out_data(out_data), .out_keep(out_keep), .out_last(out_last)
  );

  always #5 clk = ~clk;

  `include "checks.vh"

  // The model: a word that grows, and whether it waits to be taken.
  reg [31:0] word = 0;
  integer count = 0;
  reg waits = 0;
  reg ended = 0;

  task compare;
    begin
      check("out_valid", waits, out_valid);
      if (waits) begin
        check("out_data", word, out_data);
        check("out_keep", (1 << count) - 1, out_keep);
        check("out_last", ended, out_last);
      end
    end
  endtask

  task cycle(input v, input [7:0] d, input l, input r);
    reg ready;
    begin
      in_valid = v;
      in_data = d;
      in_last = l;
      out_ready = r;
      ready = !waits || r;
      #1 check("in_ready", ready, in_ready);
      if (waits && r) begin
        waits = 0;
        word = 0;
        count = 0;
      end
      if (v && ready) begin
        word = word + d * (1 << (8 * count));
        count = count + 1;
        ended = l;
        waits = l || count == 4;
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
      word = 0;
      count = 0;
      waits = 0;
      compare;
      check("out_data", 0, out_data);
      check("out_keep", 0, out_keep);
      check("out_last", 0, out_last);
    end
  endtask

  integer i;
  integer seed = 127;
  initial begin
    @(negedge clk);
    reset;
    for (i = 0; i < 17; i = i + 1) cycle(1, 8'h81 + i, 0, 1);
    cycle(1, 8'hee, 1, 0);
    cycle(1, 8'hdd, 1, 0);
    cycle(1, 8'hcc, 1, 1);
    cycle(0, 8'hbb, 1, 1);
    for (i = 0; i < 500; i = i + 1)
      cycle(({$random(seed)} % 4) != 0, $random(seed), ({$random(seed)} % 5) == 0, ({$random(seed)} % 3) != 0);
    // A reset in the middle of a word, and with a word waiting.
    cycle(1, 8'h11, 1, 1);
    cycle(1, 8'h22, 0, 1);
    cycle(1, 8'h33, 0, 1);
    in_valid = 1;
    reset;
    for (i = 0; i < 4; i = i + 1) cycle(1, 8'h44 + i, i == 3, 0);
    reset;
    for (i = 0; i < 5; i = i + 1) cycle(1, 8'h55 + i, 0, 1);
    finish;
  end
endmodule
