// Moving average over four signed samples, with the largest average so far.
module moving_average (
    input  wire              clk,
    input  wire              rst_n,
    input  wire              valid,
    input  wire signed [7:0] sample,
    output reg               average_valid,
    output wire signed [7:0] average,
    output reg signed [7:0]  peak
);

  // The three samples before the newest, and the sum of the four in the window.
  reg signed [7:0] newest;
  reg signed [7:0] middle;
  reg signed [7:0] older;
  reg signed [7:0] oldest;
  reg [9:0] sum;

  // What comes in is added, and what leaves the window is subtracted, both with their signs extended.
  wire [9:0] coming = {{2{sample[7]}}, sample};
  wire [9:0] leaving = {{2{oldest[7]}}, oldest};

  always @(posedge clk or negedge rst_n) begin
    if (!rst_n) begin
      newest <= 8'd0;
      middle <= 8'd0;
      older <= 8'd0;
      oldest <= 8'd0;
      sum <= 10'd0;
      average_valid <= 1'b0;
    end else begin
      average_valid <= valid;
      if (valid) begin
        newest <= sample;
        middle <= newest;
        older <= middle;
        oldest <= older;
        sum <= sum + coming - leaving;
      end
    end
  end

  // Leaving out the two lowest bits divides by four and rounds toward minus infinity.
  assign average = sum[9:2];

  always @(posedge clk or negedge rst_n) begin
    if (!rst_n)
      peak <= 8'h80;
    else if (average_valid && average > peak)
      peak <= average;
  end

endmodule
