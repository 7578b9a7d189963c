"""What the compiler reads of a function: its source, its names, and what it cannot cut."""
