`timescale 1ns / 1ns
module testbench;
  reg clk = 0;
  reg rst_n = 0;
  reg write_valid = 0;
  wire write_ready;
  reg [7:0] write_address = 0;
  reg [31:0] write_data = 0;
  reg [3:0] write_strobe = 0;
  wire written_valid;
  reg written_ready = 0;
  wire [1:0] written_response;
  reg read_valid = 0;
  wire read_ready;
  reg [7:0] read_address = 0;
  wire data_valid;
  reg data_ready = 0;
  wire [31:0] data;
  wire [1:0] data_response;

  axil_registers dut (
      .clk(clk), .rst_n(rst_n),
      .write_valid(write_valid), .write_ready(write_ready), .write_address(write_address),
      .write_data(write_data), .write_strobe(write_strobe),
      .written_valid(written_valid), .written_ready(written_ready), .written_response(written_response),
      .read_valid(read_valid), .read_ready(read_ready), .read_address(read_address),
      .data_valid(data_valid), .data_ready(data_ready), .data(data), .data_response(data_response)
  );

  always #5 clk = ~clk;

  `include "checks.vh"

  // The model: sixteen bytes, and a response of each kind that may be waiting.
  reg [7:0] bytes [0:15];
  reg write_waits = 0;
  reg [1:0] write_answer = 0;
  reg read_waits = 0;
  reg [1:0] read_answer = 0;
  reg [31:0] read_word = 0;
  reg writes;
  reg reads;
  integer k;

  function good(input [7:0] address);
    good = address < 16 && address % 4 == 0;
  endfunction

  task compare;
    begin
      check("written_valid", write_waits, written_valid);
      check("data_valid", read_waits, data_valid);
      if (write_waits) check("written_response", write_answer, written_response);
      if (read_waits) begin
        check("data_response", read_answer, data_response);
        check("data", read_word, data);
      end
    end
  endtask

  // One clock with whatever is applied.
  task cycle;
    begin
      #1 check("write_ready", !write_waits || written_ready, write_ready);
      check("read_ready", !read_waits || data_ready, read_ready);
      writes = write_valid && (!write_waits || written_ready);
      reads = read_valid && (!read_waits || data_ready);
      // A read at the same edge still sees what was there before.
      if (reads) begin
        read_answer = good(read_address) ? 0 : 2;
        read_word = 0;
        if (good(read_address))
          for (k = 3; k >= 0; k = k - 1) read_word = {read_word[23:0], bytes[read_address + k]};
      end
      read_waits = reads || (read_waits && !data_ready);
      if (writes) begin
        write_answer = good(write_address) ? 0 : 2;
        if (good(write_address))
          for (k = 0; k < 4; k = k + 1)
            if (write_strobe[k]) bytes[write_address + k] = write_data >> (8 * k);
      end
      write_waits = writes || (write_waits && !written_ready);
      @(negedge clk);
      compare;
    end
  endtask

  task reset;
    begin
      #1 rst_n = 0;
      for (k = 0; k < 16; k = k + 1) bytes[k] = 0;
      write_waits = 0;
      read_waits = 0;
      #1 compare;
      check("data", 0, data);
      @(negedge clk);
      rst_n = 1;
    end
  endtask

  task read_all;
    begin
      write_valid = 0;
      data_ready = 1;
      read_valid = 1;
      for (i = 0; i < 16; i = i + 4) begin
        read_address = i;
        cycle;
      end
      read_valid = 0;
      cycle;
    end
  endtask

  integer i;
  integer seed = 61;
  initial begin
    rst_n = 1;
    @(negedge clk);
    reset;
    read_all;
    written_ready = 1;
    write_strobe = 4'b1111;
    write_valid = 1;
    for (i = 0; i < 32; i = i + 1) begin
      write_address = i < 20 ? i : 1 << (i % 8);
      write_data = $random(seed);
      cycle;
    end
    read_all;
    for (i = 0; i < 400; i = i + 1) begin
      write_valid = $random(seed);
      written_ready = ({$random(seed)} % 3) != 0;
      read_valid = $random(seed);
      data_ready = ({$random(seed)} % 3) != 0;
      write_data = $random(seed);
      write_strobe = $random(seed);
      // Mostly good addresses.
      write_address = ({$random(seed)} % 4) * 4;
      if (({$random(seed)} % 8) == 0) write_address = $random(seed);
      read_address = ({$random(seed)} % 4) * 4;
      if (({$random(seed)} % 8) == 0) read_address = $random(seed);
      cycle;
    end
    read_all;
    // A reset while responses wait.
    read_valid = 1;
    write_valid = 1;
    data_ready = 0;
    written_ready = 0;
    cycle;
    reset;
    read_valid = 0;
    write_valid = 0;
    cycle;
    read_all;
    finish;
  end
endmodule
