// Register file on a bus of AXI-lite's kind.
module axil_registers (
    input  wire        clk,
    input  wire        rst_n,
    // Write requests: address, data and strobes move together.
    input  wire        write_valid,
    output wire        write_ready,
    input  wire [7:0]  write_address,
    input  wire [31:0] write_data,
    input  wire [3:0]  write_strobe,
    // Write responses.
    output reg         written_valid,
    input  wire        written_ready,
    output reg  [1:0]  written_response,
    // Read requests.
    input  wire        read_valid,
    output wire        read_ready,
    input  wire [7:0]  read_address,
    // Read responses.
    output reg         data_valid,
    input  wire        data_ready,
    output reg  [31:0] data,
    output reg  [1:0]  data_response
);

  localparam OKAY = 2'd0;
  localparam ERROR = 2'd2;

  reg [31:0] registers [0:3];

  // A request is taken when its response will find a place.
  assign write_ready = !written_valid || written_ready;
  assign read_ready = !data_valid || data_ready;

  wire do_write = write_valid && write_ready;
  wire do_read = read_valid && read_ready;

  // Registers lie on whole words in the lowest sixteen bytes.
  wire write_good = (write_address[7:4] == 4'd0) && (write_address[1:0] == 2'd0);
  wire read_good = (read_address[7:4] == 4'd0) && (read_address[1:0] == 2'd0);

  integer i;
  always @(posedge clk or negedge rst_n) begin
    if (!rst_n) begin
      for (i = 0; i < 4; i = i + 1)
        registers[i] <= 32'd0;
    end else if (do_write && write_good) begin
      for (i = 0; i < 4; i = i + 1)
        if (write_strobe[i])
          registers[write_address[3:2]][8*i +: 8] <= write_data[8*i +: 8];
    end
  end

  always @(posedge clk or negedge rst_n) begin
    if (!rst_n) begin
      written_valid <= 1'b0;
      written_response <= OKAY;
    end else if (do_write) begin
      written_valid <= 1'b1;
      written_response <= write_good ? OKAY : ERROR;
    end else if (written_ready) begin
      written_valid <= 1'b0;
    end
  end

  always @(posedge clk or negedge rst_n) begin
    if (!rst_n) begin
      data_valid <= 1'b0;
      data <= 32'd0;
      data_response <= OKAY;
    end else if (do_read) begin
      data_valid <= 1'b1;
      data <= read_good ? registers[read_address[3:2]] : 32'd0;
      data_response <= read_good ? OKAY : ERROR;
    end else if (data_ready) begin
      data_valid <= 1'b0;
    end
  end

endmodule
