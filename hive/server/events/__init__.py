"""Live events of the schedulers: published over ZeroMQ, and forwarded to browsers as server-sent events."""
