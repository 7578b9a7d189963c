// Synchronous FIFO with first-word fall-through.
module sync_fifo #(
    parameter WIDTH = 8,
    parameter ADDR = 3
) (
    input  wire             clk,
    input  wire             rst,
    input  wire             write,
    input  wire [WIDTH-1:0] write_data,
    input  wire             read,
    output wire [WIDTH-1:0] read_data,
    output wire             full,
    output wire             almost_full,
    output wire             empty,
    output wire [ADDR:0]    level
);

  localparam DEPTH = 1 << ADDR;

  reg [WIDTH-1:0] memory [0:DEPTH-1];

  // Pointers have one bit more than an address, so that full and empty differ.
  reg [ADDR:0] write_pointer;
  reg [ADDR:0] read_pointer;

  wire do_write = write && !full;
  wire do_read = read && !empty;

  assign level = write_pointer - read_pointer;
  assign empty = (write_pointer == read_pointer);
  assign full = (level == DEPTH);
  assign almost_full = (level >= DEPTH - 1);
  assign read_data = memory[read_pointer[ADDR-1:0]];

  always @(posedge clk) begin
    if (do_write)
      memory[write_pointer[ADDR-1:0]] <= write_data;
  end

  always @(posedge clk) begin
    if (rst) begin
      write_pointer <= {(ADDR+1){1'b0}};
      read_pointer <= {(ADDR+1){1'b0}};
    end else begin
      if (do_write)
        write_pointer <= write_pointer + 1'b1;
      if (do_read)
        read_pointer <= read_pointer + 1'b1;
    end
  end

endmodule
