// Included by every testbench: counts checks, prints the first mismatches, and ends the run.
integer checks = 0;
integer failures = 0;

task check(input [8*24-1:0] signal, input [63:0] expected, input [63:0] got);
  begin
    checks = checks + 1;
    if (got !== expected) begin
      failures = failures + 1;
      if (failures <= 10)
        $display("FAIL %0t %0s expected %0h got %0h", $time, signal, expected, got);
    end
  end
endtask

task finish;
  begin
    if (failures == 0)
      $display("PASS %0d checks", checks);
    else
      $display("FAILED %0d of %0d checks", failures, checks);
    $finish(0);
  end
endtask

// The watchdog: whatever the design does, the run ends.
initial begin
  #200000;
  check("watchdog", 0, 1);
  finish;
end

`ifdef DUMP
initial begin
  $dumpfile("dump.vcd");
  $dumplimit(4000000);
  $dumpvars;
end
`endif
