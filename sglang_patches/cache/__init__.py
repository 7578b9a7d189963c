"""Radix caches that know the agent behind every request, and the segment store beside them."""
