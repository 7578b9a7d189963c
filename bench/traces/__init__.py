"""Recorded runs of agents, token by token: reading, writing and recording them, and how much KV they need."""
