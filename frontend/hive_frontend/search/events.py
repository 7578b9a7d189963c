"""What a run reports while it goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

EventKind = Literal["fired", "committed", "final", "dead", "dropped", "finished"]


@dataclass(frozen=True, slots=True)
class Progress:
    """The run so far."""

    fired: int
    """Transitions begun."""
    alive: int
    """States that are waiting or in transition."""
    dead: int
    results: int
    best_score: float | None
    """Best score of any state so far."""
    requests: int
    tokens_generated: int
    tokens_replayed: int
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class Event:
    """Something happened to a state, or the run as a whole finished.

    `fired`: a transition of the state began. `committed`, `final`, `dead`: a transition led to this state,
    which waits for its next call, returned, or failed. `dropped`: the supervisor gave the state up.
    `finished`: the run ended (no state). `final` is also said of agents that work for others, when they yield
    or return; only the results of the run's own agent count as results.
    """

    kind: EventKind
    progress: Progress
    agent: str | None = None
    """The agent whose state it is."""
    state: str | None = None
    name: str | None = None
    step: str | None = None
    """Name of the state that it came from, whose call the replies answer; None for an initial state."""
    score: float | None = None
    replies: tuple[str, ...] = ()
    """What the model answered on the way to the state."""
    tokens_generated: int = 0
    tokens_replayed: int = 0
    detail: str | None = None
    """Why the branch is dead, or what the agent returned."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of an answer that a model is writing."""

    text: str
    state: str
    """Id of the state whose call is answered: the branch."""
    firing: int
    """Which of the state's firings it belongs to."""
    part: str
    """Which call of a `gather` it belongs to, such as `"0"`; empty for a call on its own."""
    agent: str
    name: str | None
    """The name that the call gives its state."""
    dialogue: str | None
    """The label of the dialogue that the answer goes into."""
