"""Lowers a function to a form in which every await is a statement of its own."""
