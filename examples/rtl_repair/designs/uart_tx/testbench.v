`timescale 1ns / 1ns
module testbench;
  reg clk = 0;
  reg rst_n = 0;
  reg start = 0;
  reg [7:0] data = 0;
  wire line;
  wire busy;
  wire done;

  uart_tx #(.DIVIDER(5)) dut (
      .clk(clk), .rst_n(rst_n), .start(start), .data(data), .line(line), .busy(busy), .done(done)
  );

  always #5 clk = ~clk;

  `include "checks.vh"

  integer bit_number;
  integer phase;
  reg [10:0] frame;

  // Sends a byte and compares every clock of its eleven bits.
  task send(input [7:0] value, input hold_start);
    begin
      frame = {1'b1, ^value, value, 1'b0};
      data = value;
      start = 1;
      @(negedge clk);
      start = hold_start;
      data = ~value;
      for (bit_number = 0; bit_number < 11; bit_number = bit_number + 1)
        for (phase = 0; phase < 5; phase = phase + 1) begin
          check("line", frame[bit_number], line);
          check("busy", 1, busy);
          check("done", 0, done);
          if (bit_number == 10) start = 0;
          @(negedge clk);
        end
      check("line", 1, line);
      check("busy", 0, busy);
      check("done", 1, done);
    end
  endtask

  task idle;
    begin
      @(negedge clk);
      check("line", 1, line);
      check("busy", 0, busy);
      check("done", 0, done);
    end
  endtask

  integer i;
  integer seed = 17;
  initial begin
    repeat (2) @(negedge clk);
    check("line", 1, line);
    check("busy", 0, busy);
    check("done", 0, done);
    rst_n = 1;
    idle;
    send(8'h55, 0);
    idle;
    send(8'h80, 1);
    send(8'h01, 0);
    idle;
    idle;
    for (i = 0; i < 12; i = i + 1) begin
      send($random(seed), i[0]);
      if (i[1]) idle;
    end
    // A reset in the middle of a frame.
    data = 8'h00;
    start = 1;
    @(negedge clk);
    start = 0;
    repeat (23) @(negedge clk);
    rst_n = 0;
    #1 check("line", 0, line);
    @(negedge clk);
    check("line", 1, line);
    check("busy", 0, busy);
    rst_n = 1;
    idle;
    send(8'ha7, 0);
    idle;
    finish;
  end
endmodule
