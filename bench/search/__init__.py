"""How many problems each supervisor solves, and AB-MCTS beside TreeQuest's. `python -m bench.search` runs it."""
