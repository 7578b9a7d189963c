"""Game of 24: join four numbers with + - * / so that 24 remains, each number used once.

- `program`: the agent, and the supervisors that make searches of it;
- `rules`: exact arithmetic, the grammar of a step, and a solver for tests and generators only;
- `puzzles`: the 1,362 solvable puzzles, ranked by difficulty;
- `prompts`: what the proposing and the valuing model are asked;
- `players`: the model itself, or the adapters that were trained for the game;
- `random_baseline`: the same search with random answers, which every reported number stands next to;
- `summary`: the report of `python -m examples.game24`.
"""
