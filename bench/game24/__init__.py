"""Game of 24: join four numbers with + - * / so that 24 remains, each number used once.

- `rules`: exact arithmetic, the grammar of a step, and a solver that only tests and generators may use;
- `puzzles`: the 1,362 solvable puzzles, ranked by difficulty;
- `prompts`: what the proposing and the valuing model are asked, and how their answers are read;
- `players`: who plays: the model itself, or the adapters that were trained for it;
- `random_arm`: the same search without a model, the baseline every reported number stands next to;
- `methods`: the ways to play that ``python -m bench.game24`` compares, and `report` what it leaves behind;
- `summary`: what a run of `examples.game24` leaves behind.
"""
