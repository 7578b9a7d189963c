`timescale 1ns / 1ns
module testbench;
  reg clk = 0;
  reg rst_n = 1;
  reg [7:0] sources = 0;
  reg write_mask = 0;
  reg [7:0] mask_data = 0;
  reg acknowledge = 0;
  wire [7:0] pending;
  wire [7:0] mask;
  wire irq;
  wire [2:0] vector;

  interrupt_controller dut (
      .clk(clk), .rst_n(rst_n), .sources(sources), .write_mask(write_mask), .mask_data(mask_data),
      .acknowledge(acknowledge), .pending(pending), .mask(mask), .irq(irq), .vector(vector)
  );

  always #5 clk = ~clk;

  `include "checks.vh"

  // The model keeps a flag per source.
  reg waits [0:7];
  reg was [0:7];
  reg open [0:7];
  integer k;
  integer first;

  task compare;
    begin
      first = 8;
      for (k = 7; k >= 0; k = k - 1) begin
        check("pending_bit", waits[k], pending[k]);
        check("mask_bit", open[k], mask[k]);
        if (waits[k] && open[k]) first = k;
      end
      check("irq", first < 8, irq);
      check("vector", first < 8 ? first : 0, vector);
    end
  endtask

  task cycle(input [7:0] s, input a, input w, input [7:0] m);
    begin
      sources = s;
      acknowledge = a;
      write_mask = w;
      mask_data = m;
      if (a && first < 8) waits[first] = 0;
      for (k = 0; k < 8; k = k + 1) begin
        if (s[k] && !was[k]) waits[k] = 1;
        was[k] = s[k];
        if (w) open[k] = m[k];
      end
      @(negedge clk);
      compare;
    end
  endtask

  task reset;
    begin
      #1 rst_n = 0;
      for (k = 0; k < 8; k = k + 1) begin
        waits[k] = 0;
        was[k] = 1;
        open[k] = 0;
      end
      #1 compare;
      @(negedge clk);
      rst_n = 1;
    end
  endtask

  integer i;
  integer seed = 113;
  initial begin
    @(negedge clk);
    reset;
    // High from the beginning.
    cycle(8'h81, 0, 0, 8'hff);
    cycle(8'h00, 0, 1, 8'hff);
    for (i = 0; i < 8; i = i + 1) cycle(8'h01 << i, 0, 0, 0);
    for (i = 0; i < 9; i = i + 1) cycle(8'h00, 1, 0, 0);
    // An edge of the source that is just acknowledged.
    cycle(8'h10, 0, 0, 0);
    cycle(8'h00, 0, 0, 0);
    cycle(8'h10, 1, 0, 0);
    cycle(8'h10, 1, 0, 0);
    for (i = 0; i < 400; i = i + 1)
      cycle(sources ^ ($random(seed) & $random(seed)), $random(seed), ({$random(seed)} % 6) == 0, $random(seed));
    cycle(8'h00, 0, 1, 8'haa);
    cycle(8'hff, 0, 0, 0);
    reset;
    cycle(8'hff, 0, 1, 8'hff);
    cycle(8'h00, 0, 0, 0);
    cycle(8'h42, 0, 0, 0);
    finish;
  end
endmodule
