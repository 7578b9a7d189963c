"""Stored pieces of KV, found by their tokens and put where a request needs them."""
