"""Events of a run in progress."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

EventKind = Literal["fired", "committed", "final", "dead", "dropped", "finished"]


@dataclass(frozen=True, slots=True)
class Progress:
    """Counters of a run in progress."""

    fired: int
    """Transitions started."""
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
    """An event of a state, or the end of the run.

    `fired`: a transition from the state started. `committed`, `final`, `dead`: a transition led to this state,
    which waits for its next call, returned, or failed. `dropped`: the supervisor dropped the state.
    `finished`: the run ended (no state). Agents that work for others send `final`, too, when they yield or return;
    only results of the run's own agent count in `Progress.results`.
    """

    kind: EventKind
    progress: Progress
    agent: str | None = None
    """The agent that the state belongs to."""
    state: str | None = None
    name: str | None = None
    step: str | None = None
    """Name of the parent state, whose call the replies answer; None for an initial state."""
    score: float | None = None
    replies: tuple[str, ...] = ()
    """The model's answers between the parent and the state."""
    tokens_generated: int = 0
    tokens_replayed: int = 0
    detail: str | None = None
    """Why the branch is dead, or the `repr` of what the agent returned."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of an answer that a model is generating."""

    text: str
    state: str
    """Id of the state whose call is answered."""
    firing: int
    """Which of the state's firings it belongs to."""
    part: str
    """Which call of a `gather` it belongs to, such as `"0"`; empty for a single call."""
    agent: str
    name: str | None
    """The state name that the call sets."""
    dialogue: str | None
    """The label of the dialogue that the answer is added to."""
