// Sorting network for four bytes: five comparisons in three pipelined stages.
module sorter (
    input  wire       clk,
    input  wire       rst_n,
    input  wire       valid_in,
    input  wire       descending,
    input  wire [7:0] in_0,
    input  wire [7:0] in_1,
    input  wire [7:0] in_2,
    input  wire [7:0] in_3,
    output reg        valid_out,
    output wire [7:0] out_0,
    output wire [7:0] out_1,
    output wire [7:0] out_2,
    output wire [7:0] out_3
);

  reg valid_1;
  reg valid_2;
  reg descending_1;
  reg descending_2;
  reg descending_3;

  reg [7:0] low_01, high_01, low_23, high_23;
  reg [7:0] least, middle_a, middle_b, most;
  reg [7:0] first, second, third, fourth;

  // First stage: two pairs, each in order.
  always @(posedge clk) begin
    low_01 <= (in_0 < in_1) ? in_0 : in_1;
    high_01 <= (in_0 < in_1) ? in_1 : in_0;
    low_23 <= (in_2 < in_3) ? in_2 : in_3;
    high_23 <= (in_2 < in_3) ? in_3 : in_2;
  end

  // Second stage: the least of the low ones, the most of the high ones.
  always @(posedge clk) begin
    least <= (low_01 < low_23) ? low_01 : low_23;
    middle_a <= (low_01 < low_23) ? low_23 : low_01;
    middle_b <= (high_01 < high_23) ? high_01 : high_23;
    most <= (high_01 < high_23) ? high_23 : high_01;
  end

  // Third stage: only the two in the middle may still be out of order.
  always @(posedge clk) begin
    first <= least;
    second <= (middle_a < middle_b) ? middle_a : middle_b;
    third <= (middle_a < middle_b) ? middle_b : middle_a;
    fourth <= most;
  end

  always @(posedge clk) begin
    if (!rst_n) begin
      valid_1 <= 1'b0;
      valid_2 <= 1'b0;
      valid_out <= 1'b0;
    end else begin
      valid_1 <= valid_in;
      valid_2 <= valid_1;
      valid_out <= valid_2;
    end
    descending_1 <= descending;
    descending_2 <= descending_1;
    descending_3 <= descending_2;
  end

  assign out_0 = descending_3 ? fourth : first;
  assign out_1 = descending_3 ? third : second;
  assign out_2 = descending_3 ? second : third;
  assign out_3 = descending_3 ? first : fourth;

endmodule
