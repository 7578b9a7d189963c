// CRC-16 (polynomial 1021, start value ffff), one byte per clock.
module crc16 (
    input  wire        clk,
    input  wire        rst_n,
    input  wire        init,
    input  wire        valid,
    input  wire        last,
    input  wire [7:0]  data,
    output reg  [15:0] crc,
    output reg         ready,
    output reg  [15:0] result
);

  localparam START = 16'hffff;
  localparam POLYNOMIAL = 16'h1021;

  // Eight steps of the serial register, unrolled.
  reg [15:0] next_crc;
  integer i;
  always @(*) begin
    next_crc = crc ^ {data, 8'h00};
    for (i = 0; i < 8; i = i + 1) begin
      if (next_crc[15])
        next_crc = {next_crc[14:0], 1'b0} ^ POLYNOMIAL;
      else
        next_crc = {next_crc[14:0], 1'b0};
    end
  end

  wire accept = valid && !init;

  always @(posedge clk) begin
    if (!rst_n) begin
      crc <= START;
      ready <= 1'b0;
      result <= 16'h0000;
    end else begin
      if (init)
        crc <= START;
      else if (valid)
        crc <= next_crc;
      ready <= accept && last;
      if (accept && last)
        result <= next_crc;
    end
  end

endmodule
