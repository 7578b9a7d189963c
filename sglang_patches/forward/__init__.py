"""What happens within a forward pass: decode rows, placed KV, sampling."""
