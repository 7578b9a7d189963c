"""Searches: states of agents fired under their supervisors, the session that asks models for them, and the journal."""
