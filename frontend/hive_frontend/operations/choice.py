"""Answers that no model gives: `choose` and `ask_human`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from pydantic import TypeAdapter

from hive_frontend.client.contract import checked_choices
from hive_frontend.client.structured import adapter_of, schema_of
from hive_frontend.operation import Call, Operation, tracked
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


@dataclass(slots=True, eq=False, repr=False)
class AskHuman(Operation[T]):
    """A question to a person. Immutable, so branches share it."""

    text: str
    choices: tuple[str, ...]
    schema: str
    """The JSON schema of the answer, as text."""
    adapter: TypeAdapter[T]
    name: str | None

    # A person may take days, in which other branches need the concurrency slot.
    sleeps = True

    @property
    def calls(self) -> tuple[Call, ...]:
        return (self,)

    @property
    def shown(self) -> str:
        """The question."""
        return self.text

    async def perform(self, transition: Transition) -> T:
        return self.adapter.validate_json(json.dumps(await transition.session.ask(self, transition)))

    def __fork__(self, memo: Memo) -> AskHuman[T]:
        return self


@overload
def ask_human(question: str, *, schema: type[T], name: str | None = ...) -> Operation[T]: ...
@overload
def ask_human(
    question: str, *, choices: Sequence[str] | None = ..., name: str | None = ...
) -> Operation[str]: ...
def ask_human(
    question: str, *, schema: Any = None, choices: Sequence[str] | None = None, name: str | None = None
) -> Operation[Any]:
    """Ask a person: `answer = await ask_human("Ship it?", choices=["yes", "no"])`.

    The answer is a string, one of the `choices`, or an instance of `schema`, any type that `gen(schema=)` takes.

    `run(..., on_question=)` is called with the `Question`. Without it, or if it returns None, this branch waits, and
    the others continue. When only waiting branches are left, the run ends with `questions`; it needs a `store` or a
    `checkpoint` for that. Once they are answered, run it again to resume it.

    A state that fires several times asks several times, once for each sample.
    """
    if not isinstance(question, str) or not question:
        raise TypeError(f"ask_human takes the question as text, not {question!r}")
    if schema is not None and choices is not None:
        raise ValueError("schema and choices exclude each other: give at most one of them")
    type = str if schema is None else schema
    options = () if choices is None else checked_choices(choices)
    return tracked(AskHuman(question, options, schema_of(type), adapter_of(type), name))
