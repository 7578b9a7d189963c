"""What a run looks like: its tree of states, a live view, and a trace of its events."""
