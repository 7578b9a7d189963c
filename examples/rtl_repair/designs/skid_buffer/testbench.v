`timescale 1ns / 1ns
module testbench;
  reg clk = 0;
  reg rst = 1;
  reg in_valid = 0;
  wire in_ready;
  reg [7:0] in_data = 0;
  wire out_valid;
  reg out_ready = 0;
  wire [7:0] out_data;

  skid_buffer #(.WIDTH(8)) dut (
      .clk(clk), .rst(rst), .in_valid(in_valid), .in_ready(in_ready), .in_data(in_data),
      .out_valid(out_valid), .out_ready(out_ready), .out_data(out_data)
  );

  always #5 clk = ~clk;

  `include "checks.vh"

  // The model: the words accepted, and how many were taken. At most two are held.
  reg [7:0] words [0:1023];
  integer accepted = 0;
  integer taken = 0;
  integer held;

  task compare;
    begin
      held = accepted - taken;
      check("in_ready", held < 2, in_ready);
      check("out_valid", held > 0, out_valid);
      if (held > 0) check("out_data", words[taken], out_data);
    end
  endtask

  task cycle(input offer, input take);
    begin
      in_valid = offer;
      out_ready = take;
      in_data = $random(seed);
      held = accepted - taken;
      // Nothing is seen at the outputs before the clock edge.
      #1 compare;
      if (offer && held < 2) begin
        words[accepted] = in_data;
        accepted = accepted + 1;
      end
      if (take && held > 0) taken = taken + 1;
      @(negedge clk);
      compare;
    end
  endtask

  integer i;
  integer seed = 5;
  initial begin
    repeat (2) @(negedge clk);
    rst = 0;
    for (i = 0; i < 8; i = i + 1) cycle(1, 1);
    for (i = 0; i < 4; i = i + 1) cycle(1, 0);
    for (i = 0; i < 4; i = i + 1) cycle(0, 1);
    for (i = 0; i < 300; i = i + 1)
      cycle(({$random(seed)} % 4) < (i[6] ? 1 : 3), ({$random(seed)} % 4) < (i[5] ? 3 : 1));
    // A reset drops both words.
    for (i = 0; i < 3; i = i + 1) cycle(1, 0);
    rst = 1;
    in_valid = 1;
    @(negedge clk);
    rst = 0;
    taken = accepted;
    compare;
    for (i = 0; i < 5; i = i + 1) cycle(1, 1);
    finish;
  end
endmodule
