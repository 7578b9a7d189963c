// Sequential divider: restoring division, one bit of the quotient per clock.
module restoring_divider (
    input  wire       clk,
    input  wire       rst_n,
    input  wire       start,
    input  wire [7:0] dividend,
    input  wire [7:0] divisor,
    output reg  [7:0] quotient,
    output reg  [7:0] remainder,
    output reg        by_zero,
    output wire       ready
);

  reg [3:0] steps_left;
  reg [7:0] denominator;
  // Bits of the dividend leave at the top while bits of the quotient come in at the bottom.
  reg [7:0] bits;
  reg [7:0] partial;

  assign ready = (steps_left == 4'd0);

  // Try to subtract; if that borrows, the bit of the quotient is 0 and the partial remainder stays.
  wire [8:0] shifted = {partial, bits[7]};
  wire [8:0] trial = shifted - {1'b0, denominator};
  wire fits = !trial[8];
  wire [7:0] next_partial = fits ? trial[7:0] : shifted[7:0];
  wire [7:0] next_bits = {bits[6:0], fits};

  always @(posedge clk or negedge rst_n) begin
    if (!rst_n) begin
      steps_left <= 4'd0;
      quotient <= 8'd0;
      remainder <= 8'd0;
      by_zero <= 1'b0;
    end else if (ready && start) begin
      by_zero <= (divisor == 8'd0);
      denominator <= divisor;
      bits <= dividend;
      partial <= 8'd0;
      if (divisor == 8'd0) begin
        quotient <= 8'hff;
        remainder <= dividend;
      end else begin
        steps_left <= 4'd8;
      end
    end else if (!ready) begin
      steps_left <= steps_left - 4'd1;
      bits <= next_bits;
      partial <= next_partial;
      if (steps_left == 4'd1) begin
        quotient <= next_bits;
        remainder <= next_partial;
      end
    end
  end

endmodule
