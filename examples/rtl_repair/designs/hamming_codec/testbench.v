`timescale 1ns / 1ns
module testbench;
  reg clk = 0;
  reg rst = 1;
  reg [3:0] data = 0;
  wire [7:0] encoded;
  reg [7:0] received = 0;
  wire [3:0] decoded;
  wire corrected;
  wire uncorrectable;

  hamming_codec dut (
      .clk(clk), .rst(rst), .data(data), .encoded(encoded), .received(received),
      .decoded(decoded), .corrected(corrected), .uncorrectable(uncorrectable)
  );

  always #5 clk = ~clk;

  `include "checks.vh"

  // The word for a number; bit 7 is the overall parity.
  reg [7:0] word;

  task decode(input [7:0] code, input [3:0] want, input one, input two);
    begin
      received = code;
      @(negedge clk);
      check("decoded", want, decoded);
      check("corrected", one, corrected);
      check("uncorrectable", two, uncorrectable);
    end
  endtask

  integer n;
  integer i;
  integer j;
  reg [7:0] twice;
  initial begin
    repeat (2) @(negedge clk);
    check("decoded", 0, decoded);
    rst = 0;
    for (n = 0; n < 16; n = n + 1) begin
      data = n;
      #1;
      // The model builds the word place by place.
      word = 0;
      word[2] = n[0];
      word[4] = n[1];
      word[5] = n[2];
      word[6] = n[3];
      for (i = 1; i <= 4; i = i * 2)
        for (j = 1; j <= 7; j = j + 1)
          if ((j & i) != 0 && j != i && word[j - 1]) word[i - 1] = ~word[i - 1];
      for (j = 0; j < 7; j = j + 1) word[7] = word[7] ^ word[j];
      check("encoded", word, encoded);
      decode(word, n, 0, 0);
      for (i = 0; i < 8; i = i + 1) decode(word ^ (1 << i), n, 1, 0);
      for (i = 0; i < 8; i = i + 1)
        for (j = 0; j < i; j = j + 1) begin
          twice = word ^ (1 << i) ^ (1 << j);
          decode(twice, {twice[6:4], twice[2]}, 0, 1);
        end
    end
    decode(8'hfe, 4'hf, 1, 0);
    rst = 1;
    @(negedge clk);
    check("decoded", 0, decoded);
    check("corrected", 0, corrected);
    rst = 0;
    decode(8'hfc, 4'hf, 0, 1);
    rst = 1;
    @(negedge clk);
    check("uncorrectable", 0, uncorrectable);
    finish;
  end
endmodule
