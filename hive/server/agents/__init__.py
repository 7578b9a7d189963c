"""Agents, their sessions and tenants, and what each agent has cost and contributed."""
