// Fixed-priority arbiter: grants are held while requested, but not for ever while others wait.
module lock_arbiter #(
    parameter MAX = 6
) (
    input  wire       clk,
    input  wire       rst_n,
    input  wire [2:0] request,
    output reg  [2:0] grant,
    output reg        timeout
);

  // How many clocks the holder has had while others were waiting.
  reg [3:0] held;

  wire [2:0] waiting = request & ~grant;
  wire keeps = |(request & grant);
  wire contested = |waiting;
  wire expired = keeps && contested && (held == MAX - 1);

  // The most urgent of those that may be granted: the holder may not after it has expired.
  wire [2:0] eligible = expired ? waiting : request;
  reg [2:0] urgent;
  always @(*) begin
    if (eligible[0])
      urgent = 3'b001;
    else if (eligible[1])
      urgent = 3'b010;
    else if (eligible[2])
      urgent = 3'b100;
    else
      urgent = 3'b000;
  end

  always @(posedge clk or negedge rst_n) begin
    if (!rst_n) begin
      grant <= 3'b000;
      held <= 4'd0;
      timeout <= 1'b0;
    end else begin
      timeout <= expired;
      if (keeps && !expired) begin
        if (contested)
          held <= held + 4'd1;
      end else begin
        grant <= urgent;
        held <= 4'd0;
      end
    end
  end

endmodule
