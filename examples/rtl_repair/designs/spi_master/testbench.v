`timescale 1ns / 1ns
module testbench;
  reg clk = 0;
  reg rst_n = 0;
  reg start = 0;
  reg [7:0] send = 0;
  wire [7:0] received;
  wire done;
  wire busy;
  wire chip_select_n;
  wire sclk;
  wire mosi;
  reg miso = 0;

  spi_master #(.HALF(3)) dut (
      .clk(clk), .rst_n(rst_n), .start(start), .send(send), .received(received), .done(done), .busy(busy),
      .chip_select_n(chip_select_n), .sclk(sclk), .mosi(mosi), .miso(miso)
  );

  always #5 clk = ~clk;

  `include "checks.vh"

  integer i;
  reg [7:0] before = 0;

  // One transfer, clock by clock: 2 * 8 halves and a last one.
  task transfer(input [7:0] out, input [7:0] back);
    begin
      send = out;
      start = 1;
      @(negedge clk);
      start = 0;
      send = ~out;
      for (i = 0; i < 51; i = i + 1) begin
        check("chip_select_n", 0, chip_select_n);
        check("busy", 1, busy);
        check("done", 0, done);
        check("received", before, received);
        check("sclk", i < 48 && (i / 3) % 2, sclk);
        if (i < 48) check("mosi", out[7 - i / 6], mosi);
        // The slave's bit is there just for the rise, and the opposite at all other times.
        miso = i % 6 == 2 ? back[7 - i / 6] : ~back[7 - i / 6];
        // A start during a transfer is ignored.
        start = i == 20;
        @(negedge clk);
      end
      check("chip_select_n", 1, chip_select_n);
      check("busy", 0, busy);
      check("sclk", 0, sclk);
      check("done", 1, done);
      check("received", back, received);
      before = back;
    end
  endtask

  task idle;
    begin
      @(negedge clk);
      check("chip_select_n", 1, chip_select_n);
      check("sclk", 0, sclk);
      check("done", 0, done);
      check("received", before, received);
    end
  endtask

  integer k;
  integer seed = 29;
  initial begin
    @(negedge clk);
    check("chip_select_n", 1, chip_select_n);
    check("sclk", 0, sclk);
    check("done", 0, done);
    check("received", 0, received);
    rst_n = 1;
    idle;
    transfer(8'ha5, 8'h3c);
    idle;
    transfer(8'h01, 8'h80);
    transfer(8'hfe, 8'h7f);
    for (k = 0; k < 8; k = k + 1) begin
      transfer($random(seed), $random(seed));
      if (k[0]) idle;
    end
    // A reset in the middle.
    start = 1;
    send = 8'hff;
    @(negedge clk);
    start = 0;
    repeat (10) @(negedge clk);
    check("sclk", 1, sclk);
    #1 rst_n = 0;
    #1 check("chip_select_n", 1, chip_select_n);
    check("sclk", 0, sclk);
    check("mosi", 0, mosi);
    check("received", 0, received);
    @(negedge clk);
    rst_n = 1;
    before = 0;
    idle;
    transfer(8'h96, 8'h69);
    finish;
  end
endmodule
