// UART transmitter: 8 data bits, even parity, 1 stop bit.
module uart_tx #(
    parameter DIVIDER = 5
) (
    input  wire       clk,
    input  wire       rst_n,
    input  wire       start,
    input  wire [7:0] data,
    output reg        line,
    output wire       busy,
    output reg        done
);

  localparam IDLE = 3'd0;
  localparam START = 3'd1;
  localparam DATA = 3'd2;
  localparam PARITY = 3'd3;
  localparam STOP = 3'd4;

  reg [2:0] state;
  reg [7:0] timer;
  reg [2:0] bit_index;
  reg [7:0] shift;
  reg parity;

  // The last clock of a bit.
  wire tick = (timer == DIVIDER - 1);

  assign busy = (state != IDLE);

  always @(posedge clk) begin
    if (!rst_n) begin
      state <= IDLE;
      timer <= 8'd0;
      bit_index <= 3'd0;
      line <= 1'b1;
      done <= 1'b0;
    end else begin
      done <= 1'b0;
      timer <= tick ? 8'd0 : timer + 8'd1;
      case (state)
        IDLE: begin
          timer <= 8'd0;
          if (start) begin
            state <= START;
            line <= 1'b0;
            shift <= data;
            parity <= ^data;
          end
        end
        START: begin
          if (tick) begin
            state <= DATA;
            bit_index <= 3'd0;
            line <= shift[0];
          end
        end
        DATA: begin
          if (tick) begin
            shift <= {1'b0, shift[7:1]};
            bit_index <= bit_index + 3'd1;
            line <= shift[1];
            if (bit_index == 3'd7) begin
              state <= PARITY;
              line <= parity;
            end
          end
        end
        PARITY: begin
          if (tick) begin
            state <= STOP;
            line <= 1'b1;
          end
        end
        default: begin
          if (tick) begin
            state <= IDLE;
            done <= 1'b1;
          end
        end
      endcase
    end
  end

endmodule
