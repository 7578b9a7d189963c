// Two-digit decimal counter.
module bcd_counter (
    input  wire       clk,
    input  wire       rst_n,
    input  wire       clear,
    input  wire       hold,
    input  wire       tick,
    output reg  [3:0] ones,
    output reg  [3:0] tens,
    output wire       carry
);

  wire count = tick && !hold;
  wire ones_full = (ones == 4'd9);
  wire tens_full = (tens == 4'd9);

  // A clear wins over a step, so there is nothing to carry then.
  assign carry = count && ones_full && tens_full && !clear;

  always @(posedge clk or negedge rst_n) begin
    if (!rst_n) begin
      ones <= 4'd0;
    end else if (clear) begin
      ones <= 4'd0;
    end else if (count) begin
      if (ones_full)
        ones <= 4'd0;
      else
        ones <= ones + 4'd1;
    end
  end

  // The tens step when the ones wrap.
  always @(posedge clk or negedge rst_n) begin
    if (!rst_n) begin
      tens <= 4'd0;
    end else if (clear) begin
      tens <= 4'd0;
    end else if (count && ones_full) begin
      tens <= tens_full ? 4'd0 : tens + 4'd1;
    end
  end

endmodule
