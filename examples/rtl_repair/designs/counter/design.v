// Up/down counter over 0..LIMIT with load, enable and a wrap pulse.
module counter #(
    parameter WIDTH = 4,
    parameter [WIDTH-1:0] LIMIT = 11
) (
    input  wire             clk,
    input  wire             rst_n,
    input  wire             enable,
    input  wire             up,
    input  wire             load,
    input  wire [WIDTH-1:0] load_value,
    output reg  [WIDTH-1:0] count,
    output reg              wrapped
);

  wire at_top = (count == LIMIT);
  wire at_bottom = (count == 0);

  // The value after one step in the chosen direction.
  reg [WIDTH-1:0] stepped;
  always @(*) begin
    if (up)
      stepped = at_top ? {WIDTH{1'b0}} : count + 1'b1;
    else
      stepped = at_bottom ? LIMIT : count - 1'b1;
  end

  always @(posedge clk or negedge rst_n) begin
    if (!rst_n) begin
      count <= {WIDTH{1'b0}};
      wrapped <= 1'b0;
    end else if (load) begin
      count <= load_value;
      wrapped <= 1'b0;
    end else if (enable) begin
      count <= stepped;
      wrapped <= up ? at_top : at_bottom;
    end else begin
      wrapped <= 1'b0;
    end
  end

endmodule
