"""Evaluations: programs run and scored on the items of a dataset, and compared with each other."""
