"""The arms: which program asks which server, and in which workloads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, get_args

Kind = Literal["hive", "stock", "ngram"]
"""A server: Hive's, stock SGLang with LRU, or SGLang with NGRAM speculative decoding."""
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

WorkloadName = Literal["tot", "mcts", "best_of_n", "rtl"]
WORKLOADS: Final[tuple[WorkloadName, ...]] = get_args(WorkloadName)

ArmName = Literal[
    "hive",
    "hive_distinct",
    "stock",
    "ngram",
    "asyncio",
    "langgraph",
    "n_k",
    "asyncio_on_hive",
    "langgraph_on_hive",
]
ARM_NAMES: Final[tuple[ArmName, ...]] = get_args(ArmName)

SERVERS: Final[Mapping[ArmName, Kind]] = {
    "hive": "hive",
    "stock": "stock",
    "ngram": "ngram",
    "asyncio": "stock",
    "langgraph": "stock",
    "n_k": "stock",
    "hive_distinct": "hive",
    "asyncio_on_hive": "hive",
    "langgraph_on_hive": "hive",
}
"""The server of an arm.

`hive`, `stock` and `ngram` are the same program, written with Hive's frontend; `hive_distinct` draws proposals without
replacement, which no other server can. `asyncio`, `langgraph` and `n_k` are written
by hand: what a user of SGLang has without Hive; `n_k` asks for all samples of a state in one request. `..._on_hive` are
programs by hand, whose requests are anonymous, on Hive's server.
"""
OPTIONAL: Final[frozenset[ArmName]] = frozenset({"asyncio_on_hive", "langgraph_on_hive"})
"""Not measured unless asked for: neither peers, nor what users of Hive would do."""

_SERVED: Final[tuple[ArmName, ...]] = ("hive", "hive_distinct", "stock", "ngram")
ARMS_OF: Final[Mapping[WorkloadName, Sequence[ArmName]]] = {
    "tot": ARM_NAMES,
    "mcts": _SERVED,
    "best_of_n": (*_SERVED, "asyncio", "n_k", "asyncio_on_hive"),
    # Agents that hand work to each other, tools between the calls: there is no version by hand.
    "rtl": ("hive", "stock", "ngram"),
}


OURS: Final[tuple[ArmName, ...]] = ("hive", "hive_distinct")
"""Programs on Hive's frontend and server: they are compared with the peers."""


def is_peer(arm: ArmName) -> bool:
    """Whether it is something that people have without Hive."""
    return SERVERS[arm] != "hive"


def arms_of(workload: WorkloadName, chosen: Sequence[ArmName]) -> list[ArmName]:
    """The chosen arms that a workload has, in the order of the tables."""
    return [arm for arm in ARM_NAMES if arm in chosen and arm in ARMS_OF[workload]]
