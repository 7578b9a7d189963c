"""Questions to people, and the check of their answers."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from hive_frontend.errors import HiveError
from hive_frontend.operations.tool_threads import ToolThreads

_SCALARS: Final[Mapping[str, type]] = {"string": str, "boolean": bool, "integer": int, "number": float}


@dataclass(frozen=True, slots=True)
class Question:
    """A question of an agent to a person."""

    text: str
    at: str
    """Which await asks: the id of the state that the answer leads to, and in a `gather` the number of the part."""
    agent: str
    choices: tuple[str, ...] = ()
    """The possible answers; empty if any answer that fits the schema is valid."""
    schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "string"})
    """The JSON schema of the answer."""
    adapter: TypeAdapter[Any] | None = field(default=None, repr=False, compare=False)
    """The type of the answer; None outside of the program that asks."""

    def parse(self, answer: object) -> Any:
        """Return an answer, as text or as a value, as a JSON value.

        Raises:
            ValueError: if it does not fit; says why.
        """
        if self.choices:
            if answer not in self.choices:
                raise self._unfit(answer, f"it must be one of {', '.join(map(repr, self.choices))}")
            return answer
        value = answer
        if isinstance(answer, str) and self.schema.get("type") != "string":
            try:
                value = json.loads(answer)
            except ValueError:
                value = answer
        adapter = self.adapter
        if adapter is None and self.schema.keys() == {"type"} and self.schema["type"] in _SCALARS:
            adapter = TypeAdapter(_SCALARS[self.schema["type"]])
        if adapter is None:
            return self._matching(value, answer)
        try:
            try:
                found = adapter.validate_json(json.dumps(value))
            except TypeError:  # It is no JSON, but may be an instance of the type.
                found = adapter.validate_python(value)
            return adapter.dump_python(found, mode="json")
        except ValidationError as error:
            problems = [
                f"{'.'.join(map(str, each['loc']))}: {each['msg']}".removeprefix(": ")
                for each in error.errors()
            ]
            raise self._unfit(answer, "; ".join(problems)) from None

    def _matching(self, value: Any, answer: object) -> Any:
        """Check a value by the JSON schema alone."""
        try:
            from jsonschema import Draft202012Validator
        except ImportError:
            raise HiveError(
                f"the answer to {self.text!r} has a JSON schema, and checking one outside of the program needs the "
                'package jsonschema: run pip install "hive[people]"'
            ) from None
        problems = [
            f"{'.'.join(map(str, each.absolute_path))}: {each.message}".removeprefix(": ")
            for each in Draft202012Validator(self.schema).iter_errors(value)
        ]
        if problems:
            raise self._unfit(answer, "; ".join(problems))
        return value

    def _unfit(self, answer: object, why: str) -> ValueError:
        return ValueError(f"{answer!r} does not answer {self.text!r}: {why}")

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {
            "text": self.text,
            "at": self.at,
            "agent": self.agent,
            "choices": list(self.choices),
            "schema": self.schema,
        }

    @staticmethod
    def from_json(fields: Mapping[str, Any]) -> Question:
        """Return the question with these fields."""
        return Question(**{**fields, "choices": tuple(fields["choices"])})


OnQuestion = Callable[[Question], object | Awaitable[object]]
"""Answers a question, or returns None to leave it open."""


class Handler:
    """Calls a program's `on_question`: functions in a thread and one at a time, because they may use the terminal;
    coroutine functions concurrently."""

    def __init__(self, function: OnQuestion, threads: ToolThreads) -> None:
        self.function = function
        self._threads = threads
        self._turn = asyncio.Lock()

    async def answer(self, question: Question) -> object:
        """Return the answer, not checked; None if the handler has none."""
        if inspect.iscoroutinefunction(self.function):
            return await self.function(question)
        async with self._turn:
            answer: Any = await self._threads.call(lambda: self.function(question), _unlimited)
        return await answer if inspect.isawaitable(answer) else answer


def _unlimited() -> AbstractAsyncContextManager[None]:
    return nullcontext()
