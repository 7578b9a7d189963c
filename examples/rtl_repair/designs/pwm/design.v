// Pulse-width modulator with a duty that changes only between periods.
module pwm #(
    parameter PERIOD = 10
) (
    input  wire       clk,
    input  wire       rst_n,
    input  wire       enable,
    input  wire [4:0] duty,
    output wire       out,
    output wire       period_start
);

  reg [4:0] counter;
  reg [4:0] active_duty;

  // The last clock of a period.
  wire last = (counter == PERIOD - 1);

  always @(posedge clk or negedge rst_n) begin
    if (!rst_n) begin
      counter <= 5'd0;
    end else if (!enable || last) begin
      counter <= 5'd0;
    end else begin
      counter <= counter + 5'd1;
    end
  end

  // What is asked for in the middle of a period has to wait for its end.
  always @(posedge clk or negedge rst_n) begin
    if (!rst_n) begin
      active_duty <= 5'd0;
    end else if (!enable || last) begin
      active_duty <= duty;
    end
  end

  assign out = enable && (counter < active_duty);
  assign period_start = enable && (counter == 5'd0);

endmodule
