"""Code of states, written and built, and the flow graph that they make."""
