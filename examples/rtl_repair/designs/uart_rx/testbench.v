`timescale 1ns / 1ns
module testbench;
  reg clk = 0;
  reg rst = 1;
  reg line = 1;
  wire [7:0] data;
  wire valid;
  wire frame_error;

  uart_rx #(.DIVIDER(8)) dut (
      .clk(clk), .rst(rst), .line(line), .data(data), .valid(valid), .frame_error(frame_error)
  );

  always #5 clk = ~clk;

  `include "checks.vh"

  // What was received, and when it was: the middle of the stop bit, after two flip-flops and one clock per step.
  integer received = 0;
  integer errors = 0;
  integer clocks = 0;
  integer seen_at = 0;
  always @(negedge clk) begin
    clocks = clocks + 1;
    if (valid === 1'b1) received = received + 1;
    if (frame_error === 1'b1) errors = errors + 1;
    if (valid === 1'b1 || frame_error === 1'b1) seen_at = clocks;
  end

  integer want_received = 0;
  integer want_errors = 0;
  integer began;
  reg [7:0] last = 0;

  task bit_of(input value, input integer length);
    begin
      line = value;
      repeat (length) @(negedge clk);
    end
  endtask

  task send(input [7:0] value, input stop, input integer length);
    integer i;
    begin
      began = clocks;
      bit_of(0, length);
      for (i = 0; i < 8; i = i + 1) bit_of(value[i], length);
      bit_of(stop, length);
      line = 1;
      if (stop) begin
        want_received = want_received + 1;
        last = value;
      end else begin
        want_errors = want_errors + 1;
      end
      #1 check("received", want_received, received);
      check("errors", want_errors, errors);
      check("data", last, data);
      if (length == 8) check("clock_of_valid", 79, seen_at - began);
      @(negedge clk);
      check("valid", 0, valid);
      check("frame_error", 0, frame_error);
    end
  endtask

  integer k;
  integer seed = 23;
  initial begin
    repeat (3) @(negedge clk);
    check("data", 0, data);
    check("valid", 0, valid);
    check("frame_error", 0, frame_error);
    rst = 0;
    bit_of(1, 10);
    send(8'h53, 1, 8);
    bit_of(1, 5);
    send(8'h80, 1, 8);
    // Noise: too short for a start bit.
    bit_of(1, 5);
    bit_of(0, 3);
    bit_of(1, 100);
    check("received", want_received, received);
    check("errors", want_errors, errors);
    send(8'hff, 1, 8);
    send(8'h0e, 0, 8);
    bit_of(1, 12);
    for (k = 0; k < 12; k = k + 1) begin
      send($random(seed), ({$random(seed)} % 5) != 0, 8);
      // After a bad stop bit the line has to be high for a while.
      bit_of(1, 10);
    end
    // A reset in the middle of a byte: nothing comes of it.
    bit_of(0, 30);
    line = 1;
    rst = 1;
    @(negedge clk);
    check("data", 0, data);
    rst = 0;
    last = 0;
    bit_of(1, 80);
    check("received", want_received, received);
    check("errors", want_errors, errors);
    send(8'hc4, 1, 8);
    finish;
  end
endmodule
