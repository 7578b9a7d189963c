"""Choices without a model: `choose`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from hive_frontend.operation import Operation, tracked
from hive_frontend.operations.fork import Memo, copy
from hive_frontend.operations.transition import Transition

T = TypeVar("T")


@dataclass(slots=True, eq=False, repr=False)
class Choose(Operation[T]):
    """A choice between options: each firing of the state takes the next one."""

    _options: tuple[T, ...]
    name: str | None

    @property
    def options(self) -> int:  # type: ignore[override]
        return len(self._options)

    async def perform(self, transition: Transition) -> T:
        return self.perform_now(transition)

    def perform_now(self, transition: Transition) -> T:
        chosen = transition.firing if transition.option is None else transition.option
        return self._options[chosen % len(self._options)]

    def __fork__(self, memo: Memo) -> Choose[Any]:
        return Choose(copy(self._options, memo), self.name)


def choose(options: Sequence[T], *, name: str | None = None) -> Operation[T]:
    """Choose one of several options: `plan = await choose(["rewrite", "patch"])`.

    The first firing of the state takes the first option, the second firing the second, and so on, starting over
    after the last. A supervisor that branches here with as many samples tries all options; an agent that runs once
    takes the first. `ABMCTS` learns which options lead to good scores, and chooses these more often.
    """
    found = tuple(options)
    if not found or isinstance(options, str):
        raise ValueError(f"choose takes a list of at least one option, not {options!r}")
    return tracked(Choose(found, name))
