`timescale 1ns / 1ns
module testbench;
  reg clk = 0;
  reg rst = 1;
  reg write = 0;
  reg [7:0] write_data = 0;
  reg read = 0;
  wire [7:0] read_data;
  wire full, almost_full, empty;
  wire [3:0] level;

  sync_fifo #(.WIDTH(8), .ADDR(3)) dut (
      .clk(clk), .rst(rst), .write(write), .write_data(write_data), .read(read), .read_data(read_data),
      .full(full), .almost_full(almost_full), .empty(empty), .level(level)
  );

  always #5 clk = ~clk;

  `include "checks.vh"

  // The model: every word ever written, and how many of them were read.
  reg [7:0] words [0:1023];
  integer written = 0;
  integer taken = 0;
  integer held;

  task compare;
    begin
      held = written - taken;
      check("level", held, level);
      check("empty", held == 0, empty);
      check("full", held == 8, full);
      check("almost_full", held >= 7, almost_full);
      if (held > 0) check("read_data", words[taken], read_data);
    end
  endtask

  task cycle(input w, input r);
    begin
      write = w;
      read = r;
      write_data = $random(seed);
      held = written - taken;
      if (w && held < 8) begin
        words[written] = write_data;
        written = written + 1;
      end
      if (r && held > 0) taken = taken + 1;
      @(negedge clk);
      compare;
    end
  endtask

  integer i;
  integer seed = 7;
  initial begin
    repeat (2) @(negedge clk);
    rst = 0;
    compare;
    for (i = 0; i < 10; i = i + 1) cycle(1, 0);
    for (i = 0; i < 3; i = i + 1) cycle(1, 1);
    for (i = 0; i < 10; i = i + 1) cycle(0, 1);
    for (i = 0; i < 3; i = i + 1) cycle(1, 1);
    // Phases that mostly fill, and phases that mostly drain.
    for (i = 0; i < 300; i = i + 1)
      cycle(({$random(seed)} % 4) < (i[5] ? 1 : 3), ({$random(seed)} % 4) < (i[5] ? 3 : 1));
    // A reset empties it.
    cycle(1, 0);
    write = 0;
    read = 0;
    rst = 1;
    @(negedge clk);
    rst = 0;
    taken = written;
    compare;
    cycle(1, 0);
    cycle(0, 1);
    finish;
  end
endmodule
