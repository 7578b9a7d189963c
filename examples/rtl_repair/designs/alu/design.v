// Eight-bit ALU with flags; purely combinational.
module alu (
    input  wire [7:0] a,
    input  wire [7:0] b,
    input  wire [2:0] op,
    output reg  [7:0] result,
    output wire       zero,
    output wire       negative,
    output reg        carry,
    output reg        overflow
);

  localparam ADD = 3'd0;
  localparam SUB = 3'd1;
  localparam AND = 3'd2;
  localparam OR = 3'd3;
  localparam XOR = 3'd4;
  localparam LESS = 3'd5;
  localparam LEFT = 3'd6;
  localparam RIGHT = 3'd7;

  // One bit more than the operands: the carry or the borrow.
  wire [8:0] sum = {1'b0, a} + {1'b0, b};
  wire [8:0] difference = {1'b0, a} - {1'b0, b};

  // Overflow: the signs of the operands make the sign of the result impossible.
  wire sum_overflow = (a[7] == b[7]) && (sum[7] != a[7]);
  wire difference_overflow = (a[7] != b[7]) && (difference[7] != a[7]);

  wire signed_less = ($signed(a) < $signed(b));

  always @(*) begin
    carry = 1'b0;
    overflow = 1'b0;
    case (op)
      ADD: begin
        result = sum[7:0];
        carry = sum[8];
        overflow = sum_overflow;
      end
      SUB: begin
        result = difference[7:0];
        carry = difference[8];
        overflow = difference_overflow;
      end
      AND: result = a & b;
      OR: result = a | b;
      XOR: result = a ^ b;
      LESS: result = {7'd0, signed_less};
      LEFT: result = a << b[2:0];
      RIGHT: result = $signed(a) >>> b[2:0];
    endcase
  end

  assign zero = (result == 8'd0);
  assign negative = result[7];

endmodule
