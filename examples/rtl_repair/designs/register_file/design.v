// Register file with two bypassed read ports, a write port and dirty bits.
module register_file (
    input  wire        clk,
    input  wire        rst,
    input  wire        write,
    input  wire [2:0]  write_index,
    input  wire [15:0] write_data,
    input  wire [2:0]  index_a,
    input  wire [2:0]  index_b,
    output wire [15:0] data_a,
    output wire [15:0] data_b,
    input  wire        clean,
    output reg  [7:0]  dirty
);

  reg [15:0] registers [0:7];

  // Register 0 is no register.
  wire effective = write && (write_index != 3'd0);

  wire bypass_a = effective && (write_index == index_a);
  wire bypass_b = effective && (write_index == index_b);

  wire [15:0] stored_a = (index_a == 3'd0) ? 16'd0 : registers[index_a];
  wire [15:0] stored_b = (index_b == 3'd0) ? 16'd0 : registers[index_b];

  assign data_a = bypass_a ? write_data : stored_a;
  assign data_b = bypass_b ? write_data : stored_b;

  integer i;
  always @(posedge clk) begin
    if (rst) begin
      for (i = 0; i < 8; i = i + 1)
        registers[i] <= 16'd0;
    end else if (effective) begin
      registers[write_index] <= write_data;
    end
  end

  // The bit of the register that is written now.
  wire [7:0] marked = effective ? (8'd1 << write_index) : 8'd0;

  always @(posedge clk) begin
    if (rst)
      dirty <= 8'd0;
    else if (clean)
      dirty <= marked;
    else
      dirty <= dirty | marked;
  end

endmodule
