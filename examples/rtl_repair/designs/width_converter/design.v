// Packs a stream of bytes into 32-bit words.
module width_converter (
    input  wire        clk,
    input  wire        rst,
    input  wire        in_valid,
    output wire        in_ready,
    input  wire [7:0]  in_data,
    input  wire        in_last,
    output reg         out_valid,
    input  wire        out_ready,
    output reg  [31:0] out_data,
    output reg  [3:0]  out_keep,
    output reg         out_last
);

  // The byte of the word that comes next.
  reg [1:0] place;

  assign in_ready = !out_valid || out_ready;

  wire accept = in_valid && in_ready;
  wire first = (place == 2'd0);
  wire complete = (place == 2'd3) || in_last;

  // The byte where it belongs; the first one of a word clears the rest.
  wire [4:0] offset = {place, 3'b000};
  wire [31:0] positioned = {24'd0, in_data} << offset;
  wire [3:0] position = 4'b0001 << place;

  always @(posedge clk) begin
    if (rst) begin
      place <= 2'd0;
      out_valid <= 1'b0;
      out_data <= 32'd0;
      out_keep <= 4'b0000;
      out_last <= 1'b0;
    end else begin
      if (accept) begin
        out_data <= first ? positioned : (out_data | positioned);
        out_keep <= first ? position : (out_keep | position);
        out_last <= in_last;
        place <= complete ? 2'd0 : place + 2'd1;
      end
      if (in_ready)
        out_valid <= accept && complete;
    end
  end

endmodule
