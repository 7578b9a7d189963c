"""Supervisors: test-time scaling algorithms that decide which states of an agent run, and how often."""

from hive_frontend.supervisors.base import Supervisor
from hive_frontend.supervisors.beam import Beam
from hive_frontend.supervisors.best_of_n import BestOfN
from hive_frontend.supervisors.mcts import MCTS
from hive_frontend.supervisors.once import Once
from hive_frontend.supervisors.searcher import Searcher, SearchProgress, lineage
from hive_frontend.supervisors.self_refine import SelfRefine
from hive_frontend.supervisors.state import Ask, Decision, Drop, Fire
from hive_frontend.supervisors.tree_of_thoughts import TreeOfThoughts
from hive_frontend.supervisors.vote import Vote

__all__ = [
    "MCTS",
    "Ask",
    "Beam",
    "BestOfN",
    "Decision",
    "Drop",
    "Fire",
    "Once",
    "SearchProgress",
    "Searcher",
    "SelfRefine",
    "Supervisor",
    "TreeOfThoughts",
    "Vote",
    "lineage",
]
