// Windowed watchdog timer.
module watchdog_timer #(
    parameter OPEN = 5,
    parameter WARN = 12,
    parameter LIMIT = 16
) (
    input  wire       clk,
    input  wire       rst_n,
    input  wire       enable,
    input  wire       kick,
    input  wire       restart,
    output reg        bite,
    output reg  [1:0] cause,
    output wire       warning
);

  localparam NONE = 2'd0;
  localparam EARLY = 2'd1;
  localparam LATE = 2'd2;

  reg [4:0] counter;

  // Kicks are welcome from OPEN on; after the last clock it is too late.
  wire window_open = (counter >= OPEN);
  wire expired = (counter == LIMIT - 1);

  assign warning = !bite && (counter >= WARN);

  always @(posedge clk or negedge rst_n) begin
    if (!rst_n) begin
      counter <= 5'd0;
      bite <= 1'b0;
      cause <= NONE;
    end else if (restart) begin
      counter <= 5'd0;
      bite <= 1'b0;
      cause <= NONE;
    end else if (enable && !bite) begin
      if (kick && window_open) begin
        counter <= 5'd0;
      end else if (kick) begin
        bite <= 1'b1;
        cause <= EARLY;
      end else if (expired) begin
        bite <= 1'b1;
        cause <= LATE;
      end else begin
        counter <= counter + 5'd1;
      end
    end
  end

endmodule
