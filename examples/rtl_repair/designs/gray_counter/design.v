// Gray-code counter: a binary register, its Gray code in a second one, and a decoder that checks the way back.
module gray_counter #(
    parameter WIDTH = 4
) (
    input  wire             clk,
    input  wire             rst,
    input  wire             enable,
    input  wire             forward,
    output reg  [WIDTH-1:0] gray,
    output reg  [WIDTH-1:0] binary,
    output wire             half
);

  reg [WIDTH-1:0] count;
  wire [WIDTH-1:0] next_count = forward ? count + 1'b1 : count - 1'b1;

  // The Gray code of a number is the number, bit by bit exclusive-or the same number shifted right by one.
  wire [WIDTH-1:0] next_gray = next_count ^ (next_count >> 1);

  always @(posedge clk) begin
    if (rst) begin
      count <= {WIDTH{1'b0}};
      gray <= {WIDTH{1'b0}};
    end else if (enable) begin
      count <= next_count;
      gray <= next_gray;
    end
  end

  // Back to binary: each bit is the parity of the Gray bits from there up.
  integer i;
  always @(*) begin
    binary[WIDTH-1] = gray[WIDTH-1];
    for (i = WIDTH - 2; i >= 0; i = i - 1)
      binary[i] = binary[i+1] ^ gray[i];
  end

  assign half = gray[WIDTH-1];

endmodule
