"""Eviction policies, one per module; ``--hive-eviction`` takes the ``name`` of each.

A new policy needs only its module: the flag's choices and help come from the classes.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from hive.server.eviction.base import EvictionPolicy, Score

ENGINE_POLICIES = ("lru", "lfu", "slru")
"""SGLang's own policies; under these, Hive's caches only do the accounting."""


@cache
def policies() -> dict[str, type[EvictionPolicy]]:
    """Return Hive's own policies by name: those that the modules of this package define."""
    modules = [f"{__name__}.{module.name}" for module in iter_modules(__path__)]
    for module in modules:
        import_module(module)
    found = {
        policy.name: policy for policy in EvictionPolicy.__subclasses__() if policy.__module__ in modules
    }
    return dict(sorted(found.items()))


def policy_of(name: str, score: Score) -> EvictionPolicy | None:
    """Return the policy of ``--hive-eviction``; None for SGLang's own policies."""
    policy = policies().get(name)
    return policy.of_server(score) if policy is not None else None
