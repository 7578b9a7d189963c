"""Programs that show what Hive is for.

- `bug_repair`: two agents repair a small Python project;
- `game24`: Game of 24 by search, with its rules, puzzles and the random baseline;
- `rtl_repair`: five agents repair Verilog designs, with simulator, linter and reference;
- `choreography`: debates and Tree of Thoughts whose messages keep their KV.
"""
