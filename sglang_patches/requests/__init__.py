"""Hive's state on requests of the engine."""
