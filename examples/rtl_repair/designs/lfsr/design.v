// 16-bit Fibonacci LFSR of maximal length.
module lfsr (
    input  wire        clk,
    input  wire        rst,
    input  wire        load,
    input  wire [15:0] seed,
    input  wire        step,
    output reg  [15:0] state,
    output wire        bit_out,
    output reg         wrapped
);

  // What the sequence began with.
  reg [15:0] origin;

  wire feedback = state[0] ^ state[2] ^ state[3] ^ state[5];
  wire [15:0] next_state = {feedback, state[15:1]};

  // All zeros would stay zeros for ever.
  wire [15:0] safe_seed = (seed == 16'd0) ? 16'd1 : seed;

  assign bit_out = state[0];

  always @(posedge clk) begin
    if (rst) begin
      state <= 16'd1;
      origin <= 16'd1;
      wrapped <= 1'b0;
    end else if (load) begin
      state <= safe_seed;
      origin <= safe_seed;
      wrapped <= 1'b0;
    end else if (step) begin
      state <= next_state;
      wrapped <= (next_state == origin);
    end
  end

endmodule
