"""Radix caches that know the agent of every request, and a cache with a segment store."""
