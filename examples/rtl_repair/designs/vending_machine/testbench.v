`timescale 1ns / 1ns
module testbench;
  reg clk = 0;
  reg rst = 1;
  reg [1:0] coin = 0;
  reg cancel = 0;
  wire dispense;
  wire change;
  wire busy;
  wire refused;

  vending_machine dut (
      .clk(clk), .rst(rst), .coin(coin), .cancel(cancel),
      .dispense(dispense), .change(change), .busy(busy), .refused(refused)
  );

  always #5 clk = ~clk;

  `include "checks.vh"

  // The model, in cents: what was paid in, and what is to be paid back.
  integer paid = 0;
  integer owed = 0;
  reg delivering = 0;
  integer worth;

  task cycle(input [1:0] c, input stop);
    begin
      coin = c;
      cancel = stop;
      #1 check("refused", (delivering || owed > 0) && c != 0, refused);
      worth = c == 1 ? 5 : c == 2 ? 10 : c == 3 ? 25 : 0;
      if (delivering) delivering = 0;
      else if (owed > 0) owed = owed - 5;
      else begin
        paid = paid + worth;
        if (paid >= 30) begin
          delivering = 1;
          owed = paid - 30;
          paid = 0;
        end else if (stop) begin
          owed = paid;
          paid = 0;
        end
      end
      @(negedge clk);
      check("dispense", delivering, dispense);
      check("change", !delivering && owed > 0, change);
      check("busy", delivering || owed > 0, busy);
    end
  endtask

  integer i;
  integer seed = 37;
  initial begin
    repeat (2) @(negedge clk);
    check("dispense", 0, dispense);
    check("busy", 0, busy);
    rst = 0;
    cycle(0, 1);
    for (i = 0; i < 8; i = i + 1) cycle(1, 0);
    for (i = 0; i < 5; i = i + 1) cycle(2, 0);
    for (i = 0; i < 9; i = i + 1) cycle(3, 0);
    cycle(1, 0);
    cycle(3, 0);
    cycle(0, 0);
    cycle(2, 0);
    cycle(2, 1);
    for (i = 0; i < 6; i = i + 1) cycle(0, 0);
    for (i = 0; i < 400; i = i + 1) cycle($random(seed), ({$random(seed)} % 7) == 0);
    // A reset keeps the money.
    cycle(0, 1);
    for (i = 0; i < 8; i = i + 1) cycle(0, 0);
    cycle(3, 0);
    rst = 1;
    coin = 0;
    cancel = 0;
    @(negedge clk);
    rst = 0;
    paid = 0;
    check("busy", 0, busy);
    cycle(1, 0);
    cycle(0, 1);
    cycle(0, 0);
    cycle(0, 0);
    finish;
  end
endmodule
