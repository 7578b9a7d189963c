"""Functions and types that compiled code uses while it runs."""
