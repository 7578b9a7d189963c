"""A runtime without programs and models: supervisors search a tree that a function describes.

`play` keeps the contract of the real one, and is stricter: what breaks a rule fails the test.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from hive_frontend import Ask, Drop, Fire, Supervisor
from hive_frontend.supervisors.state import best_first

Path = tuple[int, ...]


@dataclass(frozen=True)
class Step:
    """What a transition leads to: a state by this name, a result ("return") or a dead end ("fail")."""

    name: str
    score: float | None = None
    reply: str = ""
    options: int = 0


class FakeState:
    """What supervisors see of a state."""

    def __init__(self, path: Path, parent: FakeState | None, step: Step, asked: Ask | None = None) -> None:
        self.path = path
        self.id = ".".join(map(str, path))
        self.parent = parent
        self.name = step.name
        self.kind = {"return": "final", "fail": "dead"}.get(step.name, "waiting")
        self.score = parent.score if parent and step.score is None else step.score
        visits: Mapping[str, int] = parent.visits if parent else {}
        self.visits = {**visits, step.name: visits.get(step.name, 0) + 1}
        self.replies = (step.reply,) if step.reply else ()
        self.fired = 0
        self.value: Any = None
        self.failure = "dead" if self.kind == "dead" else None
        self.asked = asked
        self.options = step.options


World = Callable[[FakeState | None, Path], Step]
"""What the transition from a state to the one with this path leads to; no state: the start."""


@dataclass
class Played:
    """A search that is over."""

    supervisor: Any
    states: dict[Path, FakeState] = field(default_factory=dict)
    open: set[Path] = field(default_factory=set)
    dropped: set[Path] = field(default_factory=set)
    asked: list[Ask] = field(default_factory=list)
    firings: list[Path] = field(default_factory=list)
    """Every firing, in order."""
    options: dict[Path, int | None] = field(default_factory=dict)
    """The options that were chosen, by the paths of the states that they led to."""

    def search(self) -> Any:
        """All that must be the same whatever came first."""
        nodes = [
            (path, state.name, state.score, state.fired, path in self.dropped)
            for path, state in sorted(self.states.items())
        ]
        return nodes, sorted((ask.key, ask.args) for ask in self.asked), [s.id for s in self.results]

    @property
    def results(self) -> list[FakeState]:
        return sorted((s for s in self.states.values() if s.kind == "final"), key=best_first)  # type: ignore[arg-type]

    @property
    def fired(self) -> dict[str, int]:
        """How often each state was fired that was fired at all, by id."""
        return {state.id: state.fired for _, state in sorted(self.states.items()) if state.fired}


def play(
    supervisor: Supervisor,
    world: World,
    *,
    order: random.Random | None = None,
    answer: Callable[[Ask], Any] | None = None,
    limit: int = 20_000,
    options: dict[Path, int | None] | None = None,
) -> Played:
    """Run a search to its end. `order` picks which transition is done next; the eldest if there is none.

    `options` receives the option of each firing, for a world that depends on it.
    """
    supervisor = copy.deepcopy(supervisor)
    played = Played(supervisor, options={} if options is None else options)
    in_flight: list[tuple[FakeState, int] | Ask] = []

    def enter(path: Path, parent: FakeState | None) -> FakeState:
        state = played.states[path] = FakeState(path, parent, world(parent, path))
        if state.kind == "waiting":
            played.open.add(path)
        return state

    supervisor.init([enter((0,), None)])  # type: ignore[list-item]
    while True:
        for decision in supervisor.fire():
            if isinstance(decision, Ask):
                assert decision.key not in {ask.key for ask in played.asked}
                played.asked.append(decision)
                in_flight.append(decision)
                continue
            state: Any = decision.state
            assert state.path in played.open, f"{decision} of a state that is closed"
            if isinstance(decision, Drop) or decision.last:
                played.open.remove(state.path)
            if isinstance(decision, Drop):
                played.dropped.add(state.path)
                continue
            assert isinstance(decision, Fire)
            assert decision.times >= 1
            assert decision.option is None or 0 <= decision.option < state.options
            for _ in range(decision.times):
                in_flight.append((state, state.fired))
                played.firings.append(state.path)
                played.options[(*state.path, state.fired)] = decision.option
                state.fired += 1
        if not in_flight:
            return played
        assert len(played.states) < limit, "the search does not end"
        done = in_flight.pop(order.randrange(len(in_flight)) if order else 0)
        if isinstance(done, Ask):
            assert answer is not None
            value = answer(done)
            path = (1_000_000 + played.asked.index(done),)
            state = FakeState(path, None, Step("fail" if value is None else "return"), asked=done)
            state.value = value
        else:
            parent, firing = done
            state = enter((*parent.path, firing), parent)
        supervisor.commit(state)


def draw(*what: object) -> random.Random:
    """A generator that depends on `what` alone."""
    return random.Random(blake2b(repr(what).encode(), digest_size=8).digest())


def random_world(seed: int, *, depth: int = 6, names: tuple[str, ...] = ("think", "fork", "aside")) -> World:
    """A tree in which every state derives from the seed and its path."""

    def world(parent: FakeState | None, path: Path) -> Step:
        random = draw(seed, path)
        kinds = ["return"] if len(path) > depth else ["return", "fail", *(names * 2)]
        name = random.choice(kinds) if len(path) > 1 else names[0]
        score, options = random.choice([None, random.randint(-3, 3)]), 2 if name == "fork" else 0
        return Step(name, score, f"r{path[-1]}", options)

    return world


def written_world(steps: Mapping[str, Step], default: Step) -> World:
    """A tree written down: state ids to what is there."""
    return lambda parent, path: steps.get(".".join(map(str, path)), default)
