// Sequential multiplier: shift and add, one bit of b per clock.
module shift_multiplier (
    input  wire        clk,
    input  wire        rst_n,
    input  wire        start,
    input  wire [7:0]  a,
    input  wire [7:0]  b,
    output reg         busy,
    output reg         done,
    output reg  [15:0] product
);

  reg [7:0] multiplicand;
  // The upper half collects the sum; the lower half holds the bits of b that are still to come.
  reg [15:0] work;
  reg [2:0] step;

  wire [8:0] addend = work[0] ? {1'b0, multiplicand} : 9'd0;
  wire [8:0] partial = {1'b0, work[15:8]} + addend;
  wire [15:0] next_work = {partial, work[7:1]};

  always @(posedge clk) begin
    if (!rst_n) begin
      busy <= 1'b0;
      done <= 1'b0;
      product <= 16'd0;
    end else begin
      done <= 1'b0;
      if (!busy) begin
        if (start) begin
          busy <= 1'b1;
          step <= 3'd0;
          multiplicand <= a;
          work <= {8'd0, b};
        end
      end else begin
        work <= next_work;
        step <= step + 3'd1;
        if (step == 3'd7) begin
          busy <= 1'b0;
          done <= 1'b1;
          product <= next_work;
        end
      end
    end
  end

endmodule
