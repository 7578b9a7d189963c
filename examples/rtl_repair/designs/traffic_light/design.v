// Traffic lights of a crossing, with a sensor for cars and a button on the side road.
module traffic_light #(
    parameter GREEN = 8,
    parameter YELLOW = 3,
    parameter ALL_RED = 2
) (
    input  wire       clk,
    input  wire       rst,
    input  wire       car,
    input  wire       button,
    output reg  [1:0] main_light,
    output reg  [1:0] side_light,
    output wire       walk
);

  localparam MAIN_GREEN = 3'd0;
  localparam MAIN_YELLOW = 3'd1;
  localparam TO_SIDE = 3'd2;
  localparam SIDE_GREEN = 3'd3;
  localparam SIDE_YELLOW = 3'd4;
  localparam TO_MAIN = 3'd5;

  localparam RED_LAMP = 2'd0;
  localparam YELLOW_LAMP = 2'd1;
  localparam GREEN_LAMP = 2'd2;

  reg [2:0] state;
  reg [2:0] next_state;
  reg [3:0] elapsed;
  reg pressed;
  reg walking;

  always @(*) begin
    next_state = state;
    case (state)
      MAIN_GREEN: begin
        if (elapsed >= GREEN - 1 && (car || pressed))
          next_state = MAIN_YELLOW;
      end
      MAIN_YELLOW: if (elapsed == YELLOW - 1) next_state = TO_SIDE;
      TO_SIDE: if (elapsed == ALL_RED - 1) next_state = SIDE_GREEN;
      SIDE_GREEN: if (elapsed == GREEN - 1) next_state = SIDE_YELLOW;
      SIDE_YELLOW: if (elapsed == YELLOW - 1) next_state = TO_MAIN;
      default: if (elapsed == ALL_RED - 1) next_state = MAIN_GREEN;
    endcase
  end

  always @(posedge clk) begin
    if (rst) begin
      state <= MAIN_GREEN;
      elapsed <= 4'd0;
      pressed <= 1'b0;
      walking <= 1'b0;
    end else begin
      state <= next_state;
      // The time spent in a state; it stops before it would overflow.
      if (next_state != state)
        elapsed <= 4'd0;
      else if (elapsed != 4'd15)
        elapsed <= elapsed + 4'd1;
      // Whoever presses while the side road turns green still waits for the next turn.
      if (state == TO_SIDE && next_state == SIDE_GREEN) begin
        walking <= pressed;
        pressed <= button;
      end else if (button) begin
        pressed <= 1'b1;
      end
    end
  end

  always @(*) begin
    main_light = RED_LAMP;
    side_light = RED_LAMP;
    case (state)
      MAIN_GREEN: main_light = GREEN_LAMP;
      MAIN_YELLOW: main_light = YELLOW_LAMP;
      SIDE_GREEN: side_light = GREEN_LAMP;
      SIDE_YELLOW: side_light = YELLOW_LAMP;
      default: main_light = RED_LAMP;
    endcase
  end

  assign walk = walking && (state == SIDE_GREEN);

endmodule
