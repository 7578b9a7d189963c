"""Emits and builds the code of the states, and the flow graph."""
