// LIFO stack with sticky error flags.
module stack #(
    parameter WIDTH = 8,
    parameter DEPTH = 5
) (
    input  wire             clk,
    input  wire             rst,
    input  wire             push,
    input  wire             pop,
    input  wire [WIDTH-1:0] data_in,
    output wire [WIDTH-1:0] top,
    output reg  [2:0]       level,
    output reg              overflow,
    output reg              underflow
);

  reg [WIDTH-1:0] memory [0:DEPTH-1];

  wire empty = (level == 3'd0);
  wire full = (level == DEPTH);

  wire do_pop = pop && !empty;
  wire do_push = push && (!full || do_pop);

  // Where the top is, and where a pushed word goes: onto it, or in its place.
  wire [2:0] top_index = level - 3'd1;
  wire [2:0] push_index = do_pop ? top_index : level;

  assign top = empty ? {WIDTH{1'b0}} : memory[top_index];

  always @(posedge clk) begin
    if (do_push)
      memory[push_index] <= data_in;
  end

  always @(posedge clk) begin
    if (rst) begin
      level <= 3'd0;
      overflow <= 1'b0;
      underflow <= 1'b0;
    end else begin
      if (do_push && !do_pop)
        level <= level + 3'd1;
      else if (do_pop && !do_push)
        level <= level - 3'd1;
      if (push && !do_push)
        overflow <= 1'b1;
      if (pop && empty)
        underflow <= 1'b1;
    end
  end

endmodule
