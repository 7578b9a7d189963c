// Button debouncer with pulses for both edges and a counter of presses.
module debouncer #(
    parameter STABLE = 6
) (
    input  wire       clk,
    input  wire       rst,
    input  wire       button,
    output reg        level,
    output reg        pressed,
    output reg        released,
    output reg  [3:0] presses
);

  // The first flip-flop may be metastable; only the second is used.
  reg meta;
  reg sampled;
  always @(posedge clk) begin
    if (rst) begin
      meta <= 1'b0;
      sampled <= 1'b0;
    end else begin
      meta <= button;
      sampled <= meta;
    end
  end

  reg [3:0] stable_for;
  wire differs = (sampled != level);
  wire accept = differs && (stable_for == STABLE - 1);

  always @(posedge clk) begin
    if (rst) begin
      stable_for <= 4'd0;
      level <= 1'b0;
      pressed <= 1'b0;
      released <= 1'b0;
      presses <= 4'd0;
    end else begin
      pressed <= accept && sampled;
      released <= accept && !sampled;
      if (!differs || accept)
        stable_for <= 4'd0;
      else
        stable_for <= stable_for + 4'd1;
      if (accept) begin
        level <= sampled;
        if (sampled)
          presses <= presses + 4'd1;
      end
    end
  end

endmodule
