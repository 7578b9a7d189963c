// Interrupt controller: eight edge-sensitive sources, a mask, fixed priority.
module interrupt_controller (
    input  wire       clk,
    input  wire       rst_n,
    input  wire [7:0] sources,
    input  wire       write_mask,
    input  wire [7:0] mask_data,
    input  wire       acknowledge,
    output reg  [7:0] pending,
    output reg  [7:0] mask,
    output wire       irq,
    output reg  [2:0] vector
);

  reg [7:0] previous;
  wire [7:0] rising = sources & ~previous;

  wire [7:0] active = pending & mask;
  assign irq = |active;

  // The lowest active source: the loop runs downward, so that the last to be assigned wins.
  integer i;
  always @(*) begin
    vector = 3'd0;
    for (i = 7; i >= 0; i = i - 1)
      if (active[i])
        vector = i[2:0];
  end

  wire [7:0] cleared = (acknowledge && irq) ? (8'd1 << vector) : 8'd0;

  always @(posedge clk or negedge rst_n) begin
    if (!rst_n) begin
      // A source that is high from the beginning is no edge.
      previous <= 8'hff;
      pending <= 8'h00;
      mask <= 8'h00;
    end else begin
      previous <= sources;
      pending <= (pending & ~cleared) | rising;
      if (write_mask)
        mask <= mask_data;
    end
  end

endmodule
