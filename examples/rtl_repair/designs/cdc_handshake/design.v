// Two flip-flops that bring one wire into a clock domain.
module synchronizer (
    input  wire clk,
    input  wire rst_n,
    input  wire d,
    output reg  q
);

  reg meta;

  always @(posedge clk or negedge rst_n) begin
    if (!rst_n) begin
      meta <= 1'b0;
      q <= 1'b0;
    end else begin
      meta <= d;
      q <= meta;
    end
  end

endmodule

// Words from one clock domain to another by a two-phase handshake.
module cdc_handshake #(
    parameter WIDTH = 8
) (
    input  wire             src_clk,
    input  wire             src_rst_n,
    input  wire             src_valid,
    output wire             src_ready,
    input  wire [WIDTH-1:0] src_data,
    input  wire             dst_clk,
    input  wire             dst_rst_n,
    output reg              dst_valid,
    output reg  [WIDTH-1:0] dst_data
);

  reg request;
  reg acknowledge;
  reg [WIDTH-1:0] held;

  wire request_seen;
  wire acknowledge_seen;
  synchronizer to_destination (.clk(dst_clk), .rst_n(dst_rst_n), .d(request), .q(request_seen));
  synchronizer to_source (.clk(src_clk), .rst_n(src_rst_n), .d(acknowledge), .q(acknowledge_seen));

  // The word before has arrived when both wires are alike.
  assign src_ready = (request == acknowledge_seen);

  // While a word is on its way, `held` does not change, so the other domain may read it safely.
  always @(posedge src_clk or negedge src_rst_n) begin
    if (!src_rst_n) begin
      request <= 1'b0;
      held <= {WIDTH{1'b0}};
    end else if (src_valid && src_ready) begin
      request <= !request;
      held <= src_data;
    end
  end

  wire arrived = (request_seen != acknowledge);

  always @(posedge dst_clk or negedge dst_rst_n) begin
    if (!dst_rst_n) begin
      acknowledge <= 1'b0;
      dst_valid <= 1'b0;
      dst_data <= {WIDTH{1'b0}};
    end else begin
      dst_valid <= arrived;
      if (arrived) begin
        acknowledge <= request_seen;
        dst_data <= held;
      end
    end
  end

endmodule
