// Bit-serial CRC-8 with a counter of the bits taken in.
module crc8 (
    input  wire       clk,
    input  wire       rst,
    input  wire       clear,
    input  wire       enable,
    input  wire       data_bit,
    output reg  [7:0] crc,
    output reg  [7:0] bits,
    output wire       match
);

  // The polynomial without its leading term.
  localparam POLYNOMIAL = 8'h07;

  wire feedback = crc[7] ^ data_bit;
  wire [7:0] shifted = {crc[6:0], 1'b0};
  wire [7:0] next_crc = feedback ? shifted ^ POLYNOMIAL : shifted;

  // Whether anything was taken in: the counter alone comes back to 0.
  reg started;

  always @(posedge clk or posedge rst) begin
    if (rst) begin
      crc <= 8'h00;
      bits <= 8'd0;
      started <= 1'b0;
    end else if (clear) begin
      crc <= 8'h00;
      bits <= 8'd0;
      started <= 1'b0;
    end else if (enable) begin
      crc <= next_crc;
      bits <= bits + 8'd1;
      started <= 1'b1;
    end
  end

  assign match = started && (crc == 8'h00);

endmodule
