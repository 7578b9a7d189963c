// Pipelined barrel shifter: by 0..3 in the first stage, by 0, 4, 8 or 12 in the second.
module barrel_shifter (
    input  wire        clk,
    input  wire        rst,
    input  wire        valid_in,
    input  wire [15:0] data_in,
    input  wire [3:0]  amount,
    input  wire [1:0]  mode,
    output reg         valid_out,
    output reg  [15:0] data_out
);

  localparam LEFT = 2'd0;
  localparam RIGHT = 2'd1;
  localparam ARITHMETIC = 2'd2;

  reg valid_middle;
  reg [15:0] middle;
  reg [1:0] rest;
  reg [1:0] mode_middle;

  reg [15:0] fine;
  always @(*) begin
    case (mode)
      LEFT: fine = data_in << amount[1:0];
      RIGHT: fine = data_in >> amount[1:0];
      ARITHMETIC: fine = $signed(data_in) >>> amount[1:0];
      default: begin
        case (amount[1:0])
          2'd0: fine = data_in;
          2'd1: fine = {data_in[0], data_in[15:1]};
          2'd2: fine = {data_in[1:0], data_in[15:2]};
          default: fine = {data_in[2:0], data_in[15:3]};
        endcase
      end
    endcase
  end

  reg [15:0] coarse;
  always @(*) begin
    case (mode_middle)
      LEFT: coarse = middle << {rest, 2'b00};
      RIGHT: coarse = middle >> {rest, 2'b00};
      ARITHMETIC: coarse = $signed(middle) >>> {rest, 2'b00};
      default: begin
        case (rest)
          2'd0: coarse = middle;
          2'd1: coarse = {middle[3:0], middle[15:4]};
          2'd2: coarse = {middle[7:0], middle[15:8]};
          default: coarse = {middle[11:0], middle[15:12]};
        endcase
      end
    endcase
  end

  always @(posedge clk) begin
    if (rst) begin
      valid_middle <= 1'b0;
      valid_out <= 1'b0;
    end else begin
      valid_middle <= valid_in;
      valid_out <= valid_middle;
    end
  end

  // What is not valid need not be right, so data has no reset.
  always @(posedge clk) begin
    middle <= fine;
    rest <= amount[3:2];
    mode_middle <= mode;
    data_out <= coarse;
  end

endmodule
