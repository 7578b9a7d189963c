"""Verilog repair: agents find and mend one broken line of a small design, and simulation decides."""
