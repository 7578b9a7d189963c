`timescale 1ns / 1ns
module testbench;
  reg src_clk = 0;
  reg dst_clk = 0;
  reg rst_n = 1;
  reg src_valid = 0;
  wire src_ready;
  reg [7:0] src_data = 0;
  wire dst_valid;
  wire [7:0] dst_data;

  cdc_handshake #(.WIDTH(8)) dut (
      .src_clk(src_clk), .src_rst_n(rst_n), .src_valid(src_valid), .src_ready(src_ready), .src_data(src_data),
      .dst_clk(dst_clk), .dst_rst_n(rst_n), .dst_valid(dst_valid), .dst_data(dst_data)
  );

  // Edges of the two never fall together: the source's are at even times, the destination's at odd ones.
  integer dst_half = 14;
  always #10 src_clk = ~src_clk;
  initial begin
    #1;
    forever #(dst_half) dst_clk = ~dst_clk;
  end

  `include "checks.vh"

  // The model: words in the order they were accepted, each with the number of clocks that it may take.
  reg [7:0] words [0:255];
  integer accepted = 0;
  integer arrived = 0;
  integer quiet = 0;

  always @(negedge dst_clk)
    if (rst_n) begin
      if (dst_valid !== 1'b0) begin
        check("dst_valid", accepted > arrived, dst_valid);
        check("dst_data", words[arrived], dst_data);
        arrived = arrived + 1;
      end else if (arrived > 0) begin
        check("dst_data_stays", words[arrived - 1], dst_data);
      end
    end

  // At most one word is on its way, and the source learns of its arrival within a few clocks, not at once.
  integer waited = 0;
  integer longest = 0;
  integer shortest = 1000;
  always @(posedge src_clk)
    if (rst_n) begin
      if (src_valid && src_ready === 1'b1) begin
        check("on_the_way", 0, accepted - arrived);
        words[accepted] = src_data;
        accepted = accepted + 1;
        if (waited > longest) longest = waited;
        if (accepted > 1 && waited < shortest) shortest = waited;
        waited = 0;
      end else if (src_ready !== 1'b1) begin
        waited = waited + 1;
      end
    end

  task send(input integer count);
    integer k;
    begin
      for (k = 0; k < count; k = k + 1) begin
        @(negedge src_clk);
        src_valid = 1;
        src_data = $random(seed);
        quiet = 0;
        // The word is taken at the next rising edge at which the bridge is ready.
        while (src_ready !== 1'b1 && quiet < 30) begin
          quiet = quiet + 1;
          @(negedge src_clk);
        end
        check("src_ready", 1, src_ready);
        @(negedge src_clk);
        check("src_ready", 0, src_ready);
        src_valid = 0;
        if (k[1]) repeat (k % 7) @(negedge src_clk);
      end
      repeat (20) @(negedge src_clk);
      check("arrived", accepted, arrived);
      check("src_ready", 1, src_ready);
    end
  endtask

  integer seed = 109;
  initial begin
    #3 rst_n = 0;
    #2 check("dst_valid", 0, dst_valid);
    check("dst_data", 0, dst_data);
    check("src_ready", 1, src_ready);
    repeat (3) @(negedge src_clk);
    rst_n = 1;
    repeat (8) @(negedge src_clk);
    check("arrived", 0, arrived);
    send(12);
    // Two flip-flops each way: never faster than that, never much slower.
    check("longest_wait", 6, longest);
    check("shortest_wait", 4, shortest);
    dst_half = 4;
    send(12);
    dst_half = 34;
    send(12);
    // A reset with a word on its way, and the handshake in its odd phase.
    dst_half = 14;
    send(1);
    @(negedge src_clk);
    src_valid = 1;
    src_data = 8'h77;
    @(negedge src_clk);
    src_valid = 0;
    #1 rst_n = 0;
    accepted = 0;
    arrived = 0;
    #1 check("src_ready", 1, src_ready);
    check("dst_data", 0, dst_data);
    repeat (3) @(negedge src_clk);
    rst_n = 1;
    repeat (10) @(negedge src_clk);
    check("arrived", 0, arrived);
    check("dst_valid", 0, dst_valid);
    send(5);
    finish;
  end
endmodule
