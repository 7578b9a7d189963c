"""KV segments: stored encodings of runs of tokens, found by their tokens and placed at any position of a request."""
