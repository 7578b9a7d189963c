// SPI master, mode 0, most significant bit first.
module spi_master #(
    parameter HALF = 3
) (
    input  wire       clk,
    input  wire       rst_n,
    input  wire       start,
    input  wire [7:0] send,
    output reg  [7:0] received,
    output reg        done,
    output wire       busy,
    output reg        chip_select_n,
    output reg        sclk,
    output wire       mosi,
    input  wire       miso
);

  reg [7:0] shift_out;
  reg [7:0] shift_in;
  reg [3:0] falls;
  reg [3:0] timer;

  // The clock toggles when half a period is over.
  wire half_over = (timer == HALF - 1);
  wire all_sent = (falls == 4'd8);

  // The slave is selected for exactly as long as a transfer lasts.
  assign busy = !chip_select_n;
  assign mosi = shift_out[7];

  always @(posedge clk or negedge rst_n) begin
    if (!rst_n) begin
      chip_select_n <= 1'b1;
      sclk <= 1'b0;
      done <= 1'b0;
      received <= 8'h00;
      shift_out <= 8'h00;
      shift_in <= 8'h00;
      falls <= 4'd0;
      timer <= 4'd0;
    end else begin
      done <= 1'b0;
      if (!busy) begin
        if (start) begin
          chip_select_n <= 1'b0;
          shift_out <= send;
          falls <= 4'd0;
          timer <= 4'd0;
        end
      end else if (!half_over) begin
        timer <= timer + 4'd1;
      end else begin
        timer <= 4'd0;
        if (all_sent) begin
          chip_select_n <= 1'b1;
          received <= shift_in;
          done <= 1'b1;
        end else if (!sclk) begin
          sclk <= 1'b1;
          shift_in <= {shift_in[6:0], miso};
        end else begin
          sclk <= 1'b0;
          shift_out <= {shift_out[6:0], 1'b0};
          falls <= falls + 4'd1;
        end
      end
    end
  end

endmodule
