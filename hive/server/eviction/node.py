"""What is known of one node of the radix tree."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(slots=True, eq=False)
class Session:
    """One run of a program, as far as its KV is concerned."""

    number: int
    ended: bool = False


@dataclass(slots=True, eq=False)
class NodeRecord:
    """Attached to a node of the tree, and copied when the node is split."""

    producer: str
    """Agent that computed the KV."""
    agent: str
    """Agent that used it last."""
    used: int
    """Clock of the last use, in admissions."""
    session: Session | None
    """The one session that used it; None when there were several, or none was named."""
    hits: int = 0
    """Requests that used it after the one that stored it."""
    ends: int = 0
    """Those of them that went on differently, or anew, behind it: one for each turn of a dialogue, many for a prompt
    that much traffic begins with."""
    shared: bool = False
    """Whether several sessions used it."""
    on_device: bool = True
    """False while the KV is on the host alone."""

    @property
    def dead(self) -> bool:
        """Whether nobody is left to use it: its only session has ended."""
        return self.session is not None and self.session.ended

    def split(self) -> NodeRecord:
        """The record of a node's other half."""
        return replace(self)
