"""Supervisors: test-time scaling algorithms that decide which states of an agent run, and how often."""
