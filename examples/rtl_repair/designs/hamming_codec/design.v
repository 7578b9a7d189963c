// Extended Hamming code (8, 4): corrects one wrong bit, detects two.
module hamming_codec (
    input  wire       clk,
    input  wire       rst,
    input  wire [3:0] data,
    output wire [7:0] encoded,
    input  wire [7:0] received,
    output reg  [3:0] decoded,
    output reg        corrected,
    output reg        uncorrectable
);

  // Each parity bit covers the places whose number has its bit set.
  wire parity_1 = data[0] ^ data[1] ^ data[3];
  wire parity_2 = data[0] ^ data[2] ^ data[3];
  wire parity_4 = data[1] ^ data[2] ^ data[3];
  wire [6:0] word = {data[3], data[2], data[1], parity_4, data[0], parity_2, parity_1};

  assign encoded = {^word, word};

  // The syndrome is the place of a single wrong bit, or 0.
  wire [2:0] syndrome;
  assign syndrome[0] = received[0] ^ received[2] ^ received[4] ^ received[6];
  assign syndrome[1] = received[1] ^ received[2] ^ received[5] ^ received[6];
  assign syndrome[2] = received[3] ^ received[4] ^ received[5] ^ received[6];
  wire odd = ^received;

  // An odd number of wrong bits is taken for one, an even number other than none for two.
  wire single = odd;
  wire double = !odd && (syndrome != 3'd0);

  // The data bits, and which of them the syndrome names; it may also name a parity bit, or none.
  wire [3:0] raw = {received[6:4], received[2]};
  wire [3:0] wrong = {syndrome == 3'd7, syndrome == 3'd6, syndrome == 3'd5, syndrome == 3'd3};

  always @(posedge clk) begin
    if (rst) begin
      decoded <= 4'd0;
      corrected <= 1'b0;
      uncorrectable <= 1'b0;
    end else begin
      decoded <= single ? raw ^ wrong : raw;
      corrected <= single;
      uncorrectable <= double;
    end
  end

endmodule
