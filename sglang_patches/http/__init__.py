"""The HTTP process: the door, Hive's own routes, and how they reach the schedulers."""
