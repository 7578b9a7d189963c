"""Searches, which fire the states of agents under supervisors; runs; the session that calls models; the journal."""
