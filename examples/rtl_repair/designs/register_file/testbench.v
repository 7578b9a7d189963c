`timescale 1ns / 1ns
module testbench;
  reg clk = 0;
  reg rst = 1;
  reg write = 0;
  reg [2:0] write_index = 0;
  reg [15:0] write_data = 0;
  reg [2:0] index_a = 0;
  reg [2:0] index_b = 0;
  wire [15:0] data_a;
  wire [15:0] data_b;
  reg clean = 0;
  wire [7:0] dirty;

  register_file dut (
      .clk(clk), .rst(rst), .write(write), .write_index(write_index), .write_data(write_data),
      .index_a(index_a), .index_b(index_b), .data_a(data_a), .data_b(data_b), .clean(clean), .dirty(dirty)
  );

  // Slow, so that all reads of a cycle fit between two edges.
  always #50 clk = ~clk;

  `include "checks.vh"

  reg [15:0] model [0:7];
  reg [7:0] marks = 0;
  integer k;

  task cycle(input w, input [2:0] n, input [15:0] d, input c);
    begin
      write = w;
      write_index = n;
      write_data = d;
      clean = c;
      // All pairs of read ports with one of them moving.
      for (k = 0; k < 8; k = k + 1) begin
        index_a = k;
        index_b = k ^ n ^ 3;
        #1 check("data_a", w && n == index_a && n != 0 ? d : model[index_a], data_a);
        check("data_b", w && n == index_b && n != 0 ? d : model[index_b], data_b);
      end
      if (c) marks = 0;
      if (w && n != 0) begin
        model[n] = d;
        marks[n] = 1;
      end
      @(negedge clk);
      write = 0;
      #1 check("data_a_after", model[index_a], data_a);
      check("dirty", marks, dirty);
    end
  endtask

  task reset;
    begin
      rst = 1;
      write = 1;
      write_index = 5;
      @(negedge clk);
      rst = 0;
      write = 0;
      for (k = 0; k < 8; k = k + 1) model[k] = 0;
      marks = 0;
      #1 check("dirty", 0, dirty);
    end
  endtask

  integer i;
  integer seed = 89;
  initial begin
    @(negedge clk);
    reset;
    for (i = 0; i < 120; i = i + 1)
      cycle(i < 8 || ({$random(seed)} % 3) != 0, i < 8 ? i : $random(seed), $random(seed), i > 8 && ({$random(seed)} % 9) == 0);
    // A write at the edge of a reset is lost.
    reset;
    for (i = 0; i < 8; i = i + 1) begin
      index_a = i;
      index_b = 7 - i;
      #1 check("data_a", 0, data_a);
      check("data_b", 0, data_b);
    end
    finish;
  end
endmodule
