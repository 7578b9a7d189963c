// UART receiver: 8 data bits, no parity, 1 stop bit, sampled in the middle of each bit.
module uart_rx #(
    parameter DIVIDER = 8
) (
    input  wire       clk,
    input  wire       rst,
    input  wire       line,
    output reg  [7:0] data,
    output reg        valid,
    output reg        frame_error
);

  localparam HALF = DIVIDER / 2;

  localparam IDLE = 2'd0;
  localparam START = 2'd1;
  localparam DATA = 2'd2;
  localparam STOP = 2'd3;

  // Two flip-flops against metastability; the line idles high.
  reg sync_first;
  reg sync_line;
  always @(posedge clk) begin
    if (rst) begin
      sync_first <= 1'b1;
      sync_line <= 1'b1;
    end else begin
      sync_first <= line;
      sync_line <= sync_first;
    end
  end

  reg [1:0] state;
  reg [7:0] timer;
  reg [2:0] bit_index;
  reg [7:0] shift;

  always @(posedge clk) begin
    if (rst) begin
      state <= IDLE;
      timer <= 8'd0;
      bit_index <= 3'd0;
      data <= 8'd0;
      valid <= 1'b0;
      frame_error <= 1'b0;
    end else begin
      valid <= 1'b0;
      frame_error <= 1'b0;
      timer <= timer + 8'd1;
      case (state)
        IDLE: begin
          timer <= 8'd0;
          if (!sync_line)
            state <= START;
        end
        START: begin
          if (timer == HALF - 1) begin
            timer <= 8'd0;
            bit_index <= 3'd0;
            state <= sync_line ? IDLE : DATA;
          end
        end
        DATA: begin
          if (timer == DIVIDER - 1) begin
            timer <= 8'd0;
            shift <= {sync_line, shift[7:1]};
            bit_index <= bit_index + 3'd1;
            if (bit_index == 3'd7)
              state <= STOP;
          end
        end
        default: begin
          if (timer == DIVIDER - 1) begin
            state <= IDLE;
            valid <= sync_line;
            frame_error <= !sync_line;
            if (sync_line)
              data <= shift;
          end
        end
      endcase
    end
  end

endmodule
