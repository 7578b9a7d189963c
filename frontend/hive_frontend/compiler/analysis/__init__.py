"""Analysis of a function: its source, its names, and constructs that the compiler does not support."""
