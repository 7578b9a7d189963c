`timescale 1ns / 1ns
module testbench;
  reg clk = 0;
  reg rst = 1;
  reg advance = 0;
  reg [3:0] request = 0;
  wire [3:0] grant;
  wire [1:0] index;
  wire valid;

  rr_arbiter dut (
      .clk(clk), .rst(rst), .advance(advance), .request(request), .grant(grant), .index(index), .valid(valid)
  );

  always #5 clk = ~clk;

  `include "checks.vh"

  integer last = 3;
  integer tried;
  integer found;
  reg [3:0] model = 0;

  task cycle(input a, input [3:0] r);
    begin
      advance = a;
      request = r;
      if (a) begin
        model = 0;
        found = 0;
        for (tried = 1; tried <= 4; tried = tried + 1)
          if (!found && r[(last + tried) % 4]) begin
            found = 1;
            model[(last + tried) % 4] = 1;
            last = (last + tried) % 4;
            tried = 5;
          end
      end
      @(negedge clk);
      check("grant", model, grant);
      check("index", last, index);
      check("valid", model != 0, valid);
    end
  endtask

  integer i;
  integer seed = 2;
  initial begin
    repeat (2) @(negedge clk);
    rst = 0;
    cycle(0, 4'b1111);
    for (i = 0; i < 9; i = i + 1) cycle(1, 4'b1111);
    for (i = 0; i < 4; i = i + 1) cycle(1, 4'b1010);
    cycle(1, 4'b0000);
    cycle(0, 4'b0100);
    cycle(1, 4'b0100);
    cycle(1, 4'b0100);
    for (i = 0; i < 200; i = i + 1) cycle(({$random(seed)} % 5) != 0, $random(seed));
    cycle(1, 4'b0110);
    advance = 1;
    request = 4'b1111;
    rst = 1;
    @(negedge clk);
    check("grant", 0, grant);
    check("valid", 0, valid);
    rst = 0;
    last = 3;
    for (i = 0; i < 3; i = i + 1) cycle(1, 4'b1111);
    finish;
  end
endmodule
