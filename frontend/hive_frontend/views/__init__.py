"""Views of a run: its search tree, a live view in the terminal, and a trace of its events."""
