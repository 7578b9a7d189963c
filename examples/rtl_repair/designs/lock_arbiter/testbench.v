`timescale 1ns / 1ns
module testbench;
  reg clk = 0;
  reg rst_n = 0;
  reg [2:0] request = 0;
  wire [2:0] grant;
  wire timeout;

  lock_arbiter #(.MAX(6)) dut (
      .clk(clk), .rst_n(rst_n), .request(request), .grant(grant), .timeout(timeout)
  );

  always #5 clk = ~clk;

  `include "checks.vh"

  // The model: the number of the holder, 3 for none.
  integer holder = 3;
  integer patience = 0;
  integer skip;
  integer next;
  reg late;

  task cycle(input [2:0] r);
    begin
      request = r;
      late = 0;
      skip = 3;
      if (holder < 3 && r[holder]) begin
        if (r != (3'b001 << holder)) begin
          patience = patience + 1;
          late = patience == 6;
          if (late) skip = holder;
        end
      end else begin
        patience = 0;
        holder = 3;
      end
      if (late || holder == 3) begin
        patience = 0;
        next = 3;
        if (r[2] && skip != 2) next = 2;
        if (r[1] && skip != 1) next = 1;
        if (r[0] && skip != 0) next = 0;
        holder = next;
      end
      @(negedge clk);
      check("grant", holder == 3 ? 0 : 1 << holder, grant);
      check("timeout", late, timeout);
    end
  endtask

  integer i;
  integer seed = 13;
  initial begin
    repeat (2) @(negedge clk);
    check("grant", 0, grant);
    check("timeout", 0, timeout);
    rst_n = 1;
    cycle(3'b000);
    cycle(3'b110);
    cycle(3'b111);
    cycle(3'b101);
    cycle(3'b100);
    cycle(3'b000);
    // Nobody waits: the grant is held as long as one likes.
    for (i = 0; i < 20; i = i + 1) cycle(3'b010);
    for (i = 0; i < 30; i = i + 1) cycle(3'b011);
    for (i = 0; i < 30; i = i + 1) cycle(3'b111);
    for (i = 0; i < 30; i = i + 1) cycle(3'b110);
    for (i = 0; i < 400; i = i + 1) begin
      // Requests that mostly stay as they are.
      if (({$random(seed)} % 4) == 0) request[{$random(seed)} % 3] = $random(seed);
      cycle(request);
    end
    for (i = 0; i < 3; i = i + 1) cycle(3'b111);
    #1 rst_n = 0;
    #1 check("grant", 0, grant);
    @(negedge clk);
    rst_n = 1;
    holder = 3;
    patience = 0;
    for (i = 0; i < 9; i = i + 1) cycle(3'b110);
    finish;
  end
endmodule
