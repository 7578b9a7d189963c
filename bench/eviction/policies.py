"""The policies that are compared: SGLang's, Hive's, and Hive's without agents or ends of sessions."""

from __future__ import annotations

from dataclasses import dataclass

from hive.server.agents.window import WindowSettings
from hive.server.eviction.policies import ENGINE_POLICIES, policies
from hive.server.eviction.policies.density import DensitySettings

CLAIRVOYANT = "clairvoyant"
"""Name of the bound among the policies."""
_WINDOW = WindowSettings()


@dataclass(frozen=True)
class Policy:
    """A radix cache, and what it knows of agents and sessions."""

    name: str
    eviction: str
    """The cache's name of the policy."""
    hive: bool = True
    """Whether the cache is Hive's; else it is SGLang's own."""
    sessions: bool = False
    """Whether SGLang's cache knows sessions, as with ``--enable-session-radix-cache``."""
    agents: bool = True
    """Whether requests name their agent and session."""
    ends: bool = True
    """Whether the end of a session is announced."""
    hints: bool = False
    """Whether clients say what their sessions wait for, and how long."""
    density: DensitySettings | None = None
    """Constants of the policy density, if they differ from the server's."""
    window: WindowSettings = _WINDOW


POLICIES = {
    policy.name: policy
    for policy in (
        *(Policy(name, name, hive=False) for name in ENGINE_POLICIES),
        *(Policy(name, name) for name in policies()),
        Policy("density-endless", "density", ends=False),
        Policy("density-anonymous", "density", agents=False, ends=False),
        Policy("density-hints", "density", hints=True),
        Policy("session-radix", "lru", hive=False, sessions=True),
    )
}
MAIN_POLICIES = ("lru", "lfu", "slru", "paper", "density")
