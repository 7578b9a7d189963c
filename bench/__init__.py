"""Reproducible experiments: each folder is one workload with its rules, its data and its baselines."""
