"""Live events: snapshots of the schedulers, streamed to browsers as server-sent events."""
