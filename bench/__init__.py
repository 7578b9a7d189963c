"""Reproducible experiments: each folder is a workload; `harness`, `traces` and `training` are what they share."""
