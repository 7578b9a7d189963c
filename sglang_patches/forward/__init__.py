"""Code that runs in a forward pass: decode rows, placed KV, sampling."""
