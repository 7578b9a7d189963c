// Detector of the sequence 1011 with overlaps, and a saturating counter of what it found.
module sequence_detector (
    input  wire       clk,
    input  wire       rst,
    input  wire       bit_in,
    input  wire       bit_valid,
    output wire       found,
    output reg  [7:0] count
);

  // Each state is named after the longest end of the stream that may begin the sequence.
  localparam NOTHING = 3'd0;
  localparam SEEN_1 = 3'd1;
  localparam SEEN_10 = 3'd2;
  localparam SEEN_101 = 3'd3;
  localparam SEEN_1011 = 3'd4;

  reg [2:0] state;
  reg [2:0] next_state;

  always @(*) begin
    case (state)
      NOTHING: next_state = bit_in ? SEEN_1 : NOTHING;
      SEEN_1: next_state = bit_in ? SEEN_1 : SEEN_10;
      SEEN_10: next_state = bit_in ? SEEN_101 : NOTHING;
      SEEN_101: next_state = bit_in ? SEEN_1011 : SEEN_10;
      // The last 1 counts as a first one, too.
      SEEN_1011: next_state = bit_in ? SEEN_1 : SEEN_10;
      default: next_state = NOTHING;
    endcase
  end

  always @(posedge clk or posedge rst) begin
    if (rst) begin
      state <= NOTHING;
      count <= 8'd0;
    end else if (bit_valid) begin
      state <= next_state;
      if (next_state == SEEN_1011 && count != 8'hff)
        count <= count + 8'd1;
    end
  end

  assign found = (state == SEEN_1011);

endmodule
