// Round-robin arbiter with four requesters and a registered one-hot grant.
module rr_arbiter (
    input  wire       clk,
    input  wire       rst,
    input  wire       advance,
    input  wire [3:0] request,
    output reg  [3:0] grant,
    output reg  [1:0] index,
    output wire       valid
);

  // Requests turned so that bit 0 is the requester after the one granted last.
  wire [1:0] first = index + 2'd1;
  wire [7:0] twice = {request, request};
  wire [3:0] turned = twice[{1'b0, first} +: 4];

  // The lowest turned request wins.
  reg [1:0] offset;
  always @(*) begin
    if (turned[0])
      offset = 2'd0;
    else if (turned[1])
      offset = 2'd1;
    else if (turned[2])
      offset = 2'd2;
    else
      offset = 2'd3;
  end

  // Turned back; the sum wraps around at four.
  wire [1:0] winner = first + offset;
  wire any = |turned;

  always @(posedge clk) begin
    if (rst) begin
      grant <= 4'b0000;
      index <= 2'd3;
    end else if (advance) begin
      grant <= any ? (4'b0001 << winner) : 4'b0000;
      if (any)
        index <= winner;
    end
  end

  assign valid = (grant != 4'b0000);

endmodule
