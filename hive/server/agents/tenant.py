"""Names qualified by tenant, which keep the agents and sessions of different tenants apart.

A tenant sees its own agents and sessions, under the names that it gave them.  An operator sees all of them, each with
its tenant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SEPARATOR = "|"
"""Separates tenant and name; names in requests must not contain it."""


def qualified(tenant: str | None, name: str) -> str:
    """Return the name of an agent or session as the scheduler knows it."""
    return name if tenant is None else f"{tenant}{SEPARATOR}{name}"


def split(name: str) -> tuple[str | None, str]:
    """Return the tenant of a qualified name (None: without tenant) and the name within the tenant."""
    tenant, separator, rest = name.partition(SEPARATOR)
    return (tenant, rest) if separator else (None, name)


@dataclass(frozen=True)
class View:
    """Which statistics to show: everything, or those of one tenant (None: of requests without a tenant)."""

    everything: bool
    tenant: str | None = None

    def shows(self, name: str) -> bool:
        """Whether counts under a qualified name belong to the view."""
        return self.everything or split(name)[0] == self.tenant

    def of(self, summary: dict[str, Any], other: str) -> dict[str, Any]:
        """Return the part of a scheduler's summary that may be shown, with name and tenant as separate fields.

        Args:
            summary: has qualified names in ``agents`` and ``sharing``.
            other: the name under which agents past the limit are counted, for all tenants.
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
        # Server-wide numbers would tell about other tenants.
        return {"tenant": self.tenant, **shown, "sessions": summary["sessions"]}


EVERYTHING = View(everything=True)


def _named(item: dict[str, Any], field: str, owner: str) -> dict[str, Any]:
    tenant, name = split(item[field])
    return {**item, field: name, owner: tenant}
