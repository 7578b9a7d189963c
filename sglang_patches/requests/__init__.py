"""What Hive attaches to a request of the engine."""
