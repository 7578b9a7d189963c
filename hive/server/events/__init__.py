"""What happens in the schedulers, told to whoever listens: events over ZeroMQ, and server-sent events of them."""
