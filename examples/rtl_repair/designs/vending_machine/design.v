// Vending machine: collects coins, dispenses, and pays back in coins of five.
module vending_machine (
    input  wire       clk,
    input  wire       rst,
    input  wire [1:0] coin,
    input  wire       cancel,
    output reg        dispense,
    output wire       change,
    output wire       busy,
    output wire       refused
);

  // All amounts are in units of five cents.
  localparam PRICE = 6;

  localparam COLLECT = 2'd0;
  localparam DELIVER = 2'd1;
  localparam PAY_BACK = 2'd2;

  reg [1:0] state;
  reg [3:0] sum;
  reg [3:0] value;

  always @(*) begin
    case (coin)
      2'd1: value = 4'd1;
      2'd2: value = 4'd2;
      2'd3: value = 4'd5;
      default: value = 4'd0;
    endcase
  end

  wire [3:0] total = sum + value;

  always @(posedge clk) begin
    if (rst) begin
      state <= COLLECT;
      sum <= 4'd0;
      dispense <= 1'b0;
    end else begin
      dispense <= 1'b0;
      case (state)
        COLLECT: begin
          sum <= total;
          if (total >= PRICE) begin
            state <= DELIVER;
            dispense <= 1'b1;
            sum <= total - PRICE;
          end else if (cancel && total != 4'd0) begin
            state <= PAY_BACK;
          end
        end
        DELIVER: begin
          state <= (sum != 4'd0) ? PAY_BACK : COLLECT;
        end
        default: begin
          sum <= sum - 4'd1;
          if (sum == 4'd1)
            state <= COLLECT;
        end
      endcase
    end
  end

  assign change = (state == PAY_BACK);
  assign busy = (state != COLLECT);
  assign refused = busy && (coin != 2'd0);

endmodule
