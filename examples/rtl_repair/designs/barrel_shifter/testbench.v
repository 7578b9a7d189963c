`timescale 1ns / 1ns
module testbench;
  reg clk = 0;
  reg rst = 1;
  reg valid_in = 0;
  reg [15:0] data_in = 0;
  reg [3:0] amount = 0;
  reg [1:0] mode = 0;
  wire valid_out;
  wire [15:0] data_out;

  barrel_shifter dut (
      .clk(clk), .rst(rst), .valid_in(valid_in), .data_in(data_in), .amount(amount), .mode(mode),
      .valid_out(valid_out), .data_out(data_out)
  );

  always #5 clk = ~clk;

  `include "checks.vh"

  // The model shifts one bit at a time, and remembers what went in one and two clocks ago.
  reg [15:0] now_word;
  reg [15:0] word_1;
  reg [15:0] word_2;
  reg valid_1 = 0;
  reg valid_2 = 0;
  integer k;

  task cycle(input v, input [15:0] d, input [3:0] n, input [1:0] m);
    begin
      valid_in = v;
      data_in = d;
      amount = n;
      mode = m;
      now_word = d;
      for (k = 0; k < n; k = k + 1)
        case (m)
          0: now_word = {now_word[14:0], 1'b0};
          1: now_word = {1'b0, now_word[15:1]};
          2: now_word = {now_word[15], now_word[15:1]};
          3: now_word = {now_word[0], now_word[15:1]};
        endcase
      word_2 = word_1;
      valid_2 = valid_1;
      word_1 = now_word;
      valid_1 = v;
      @(negedge clk);
      check("valid_out", valid_2, valid_out);
      if (valid_2) check("data_out", word_2, data_out);
    end
  endtask

  integer i;
  integer seed = 47;
  initial begin
    repeat (3) @(negedge clk);
    check("valid_out", 0, valid_out);
    rst = 0;
    cycle(0, 16'h1234, 0, 0);
    for (i = 0; i < 64; i = i + 1) cycle(1, 16'h9c35, i[3:0], i[5:4]);
    for (i = 0; i < 200; i = i + 1)
      cycle(({$random(seed)} % 5) != 0, $random(seed), $random(seed), $random(seed));
    // A reset with two words on their way.
    cycle(1, 16'hffff, 1, 0);
    cycle(1, 16'hffff, 1, 0);
    rst = 1;
    @(negedge clk);
    check("valid_out", 0, valid_out);
    rst = 0;
    valid_1 = 0;
    cycle(0, 0, 0, 0);
    cycle(1, 16'h8001, 5, 2);
    cycle(0, 0, 0, 0);
    cycle(0, 0, 0, 0);
    finish;
  end
endmodule
