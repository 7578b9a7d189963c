"""What the server records about each node of the radix tree."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hive.server.eviction.dialogues import Dialogue


@dataclass(slots=True, eq=False)
class Session:
    """One run of a program, as the eviction sees it."""

    number: int
    ended: bool = False
    dialogues: dict[str, Dialogue] = field(default_factory=dict)
    """By agent."""
    latest: Dialogue | None = None
    """The one whose request ended last, or arrived last."""


DISCARDED = Session(-2, ended=True)
"""Stands for the session of KV that its own session has discarded; it can be used again like that of an ended one."""


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
    """The only session that used it; None if several did, or if none was named."""
    hits: int = 0
    """Requests that used it after the one that stored it."""
    ends: int = 0
    """How many of those requests ended their match here, and so continued behind it differently: one for each turn of
    a dialogue, many for a prompt that much traffic starts with."""
    shared: bool = False
    """Whether several sessions used it."""
    on_device: bool = True
    """False while the KV is on the host alone."""
    dialogue: Dialogue | None = None
    """The only dialogue that used it; None if several did, or if its requests came without times."""
    turn: int = 0
    """The dialogue's turn that used it last: KV of an earlier turn than the dialogue's is off its path."""

    @property
    def dead(self) -> bool:
        """Whether no request can use it any more, because its only session has ended."""
        return self.session is not None and self.session.ended

    @property
    def on_path(self) -> bool:
        """Whether its dialogue's last request used it."""
        return self.dialogue is not None and self.turn == self.dialogue.turn

    def split(self) -> NodeRecord:
        """Return the record for the other half of a split node."""
        return replace(self)
