"""Tenants in names: what is counted and kept by name is apart by tenant, for a name holds its tenant.

A tenant sees its own agents and sessions, under the names that it gave them; an operator sees all, each with its
tenant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SEPARATOR = "|"
"""No name of a request may hold it."""


def qualified(tenant: str | None, name: str) -> str:
    """An agent's or session's name as the scheduler knows it."""
    return name if tenant is None else f"{tenant}{SEPARATOR}{name}"


def split(name: str) -> tuple[str | None, str]:
    """The tenant of such a name, None for nobody's, and the name within it."""
    tenant, separator, rest = name.partition(SEPARATOR)
    return (tenant, rest) if separator else (None, name)


@dataclass(frozen=True)
class View:
    """Whose statistics are asked for: everybody's, or those of one tenant (None: of those without one)."""

    everything: bool
    tenant: str | None = None

    def shows(self, name: str) -> bool:
        """Whether what is counted under a qualified name is in the view."""
        return self.everything or split(name)[0] == self.tenant

    def of(self, summary: dict[str, Any], other: str) -> dict[str, Any]:
        """The part of a scheduler's summary that may be shown, with names and tenants told apart.

        Args:
            summary: with qualified names in ``agents`` and ``sharing``.
            other: the name under which agents past the limit are counted, of whatever tenant.
        """
        agents = [
            _named(agent, "name", "tenant")
            for agent in summary["agents"]
            if self.shows(agent["name"]) and (self.everything or agent["name"] != other)
        ]
        sharing = [
            _named(_named(edge, "agent", "tenant"), "producer", "producer_tenant")
            for edge in summary["sharing"]
            if self.shows(edge["agent"]) and self.shows(edge["producer"])
        ]
        shown = {"agents": agents, "sharing": sharing}
        if self.everything:
            return {**summary, **shown}
        # Whatever is of the whole server tells of other tenants.
        return {"tenant": self.tenant, **shown, "sessions": summary["sessions"]}


EVERYTHING = View(everything=True)


def _named(item: dict[str, Any], field: str, owner: str) -> dict[str, Any]:
    tenant, name = split(item[field])
    return {**item, field: name, owner: tenant}
