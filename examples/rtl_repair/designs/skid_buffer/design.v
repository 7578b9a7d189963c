// Skid buffer: a register slice for valid/ready streams, without a combinational path from out_ready to in_ready.
module skid_buffer #(
    parameter WIDTH = 8
) (
    input  wire             clk,
    input  wire             rst,
    input  wire             in_valid,
    output wire             in_ready,
    input  wire [WIDTH-1:0] in_data,
    output reg              out_valid,
    input  wire             out_ready,
    output reg  [WIDTH-1:0] out_data
);

  // The word that came in while the consumer stalled.
  reg skid_valid;
  reg [WIDTH-1:0] skid_data;

  assign in_ready = !skid_valid;

  wire accept = in_valid && in_ready;
  // The output register can take a word: it is empty, or its word leaves now.
  wire advance = !out_valid || out_ready;

  always @(posedge clk) begin
    if (rst) begin
      skid_valid <= 1'b0;
      out_valid <= 1'b0;
    end else if (advance) begin
      // A skidded word is older than anything the producer offers, so it goes first.
      out_valid <= skid_valid || accept;
      skid_valid <= 1'b0;
    end else if (accept) begin
      skid_valid <= 1'b1;
    end
  end

  always @(posedge clk) begin
    if (advance)
      out_data <= skid_valid ? skid_data : in_data;
    if (accept && !advance)
      skid_data <= in_data;
  end

endmodule
