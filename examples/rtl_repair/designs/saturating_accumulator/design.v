// Saturating accumulator for signed values.
module saturating_accumulator (
    input  wire               clk,
    input  wire               rst,
    input  wire               clear,
    input  wire               enable,
    input  wire               subtract,
    input  wire signed [7:0]  value,
    output reg  signed [11:0] total,
    output reg                saturated,
    output wire [11:0]        magnitude
);

  localparam signed [12:0] MOST = 2047;
  localparam signed [12:0] LEAST = -2048;

  // One bit more than the total, so that no sum overflows.
  wire signed [12:0] wide_value = $signed({{5{value[7]}}, value});
  wire signed [12:0] wide_total = $signed({total[11], total});
  wire signed [12:0] exact = subtract ? wide_total - wide_value : wide_total + wide_value;

  wire too_high = (exact > MOST);
  wire too_low = (exact < LEAST);

  always @(posedge clk) begin
    if (rst || clear) begin
      total <= 12'd0;
      saturated <= 1'b0;
    end else if (enable) begin
      if (too_high)
        total <= MOST[11:0];
      else if (too_low)
        total <= LEAST[11:0];
      else
        total <= exact[11:0];
      saturated <= saturated || too_high || too_low;
    end
  end

  assign magnitude = (total < 0) ? -total : total;

endmodule
