"""Supervisors: test-time scaling algorithms that decide which states of an agent run, and how often."""

from hive_frontend.supervisors.base import Decision, Drop, Fire, Supervisor
from hive_frontend.supervisors.once import Once
from hive_frontend.supervisors.tree_of_thoughts import TreeOfThoughts

__all__ = ["Decision", "Drop", "Fire", "Once", "Supervisor", "TreeOfThoughts"]
