"""Verilog repair: five agents find and mend one broken line of a small design, and simulation decides.

`agents` is the program; `bugs`, `designs` and `mutations` make its tasks, `simulator`, `lint`, `waveform` and
`text_search` are its tools. ``python -m bench.rtl_repair`` measures how much it repairs.
"""
