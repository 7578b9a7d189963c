"""Game of 24 (`examples.game24`) by several methods, beside the random baseline.

- `methods`: the ways to play that ``python -m bench.game24`` compares, and `report` what it leaves behind.
"""
