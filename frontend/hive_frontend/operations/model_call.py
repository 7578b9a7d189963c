"""Model calls as data, and the checks of their settings."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, TypeVar

from hive_frontend.client.contract import Sampling, schema_text
from hive_frontend.client.dialogue import Dialogue
from hive_frontend.client.messages import Message
from hive_frontend.client.structured import schema_of
from hive_frontend.operation import Call, Operation

T = TypeVar("T")

_NUMBERS = ("temperature", "top_p", "top_k")


class SamplingSettings(TypedDict, total=False):
    """How a model samples. Settings left at None are the server's choice."""

    max_tokens: int
    """The most tokens of an answer; 256 by default."""
    temperature: float | None
    top_p: float | None
    top_k: int | None
    stop: str | Sequence[str]
    """Texts that end the answer, and are not part of it."""


class AnswerSettings(SamplingSettings, total=False):
    """How a model samples, and what it may answer: at most one of the constraints."""

    regex: str | None
    json_schema: Mapping[str, Any] | str | None
    choices: Sequence[str] | None


@dataclass(slots=True, eq=False, repr=False)
class ModelCall(Operation[T]):
    """One model call. It has everything that the request needs when it is created."""

    messages: tuple[Message, ...]
    prompt: str | None
    sampling: Sampling
    name: str | None = None
    agent: str | None = None
    sample: int | None = None
    dialogue: Dialogue | None = None
    """The dialogue that takes the answer as its next turn."""

    @property
    def calls(self) -> tuple[Call, ...]:
        return (self,)

    @property
    def shown(self) -> str:
        """The prompt of the call, for people to read."""
        if self.prompt is not None:
            return self.prompt
        return "\n\n".join(message.content for message in self.messages)


def checked_sample(sample: int | None) -> int | None:
    """Return `sample` if it is a valid sample number; raise `ValueError` otherwise."""
    if sample is not None and not 0 <= sample < 2**31:
        raise ValueError(f"sample must be from 0 to 2**31 - 1, not {sample!r}")
    return sample


def sampling_of(
    schema: Any,
    /,
    stop: str | Sequence[str] = (),
    json_schema: Mapping[str, Any] | str | None = None,
    choices: Sequence[str] | None = None,
    **others: Any,
) -> Sampling:
    """Check `AnswerSettings`, and return them as `Sampling`; `schema` is the type of the answer, or None."""
    if schema is not None:
        if json_schema is not None:
            raise ValueError("schema and json_schema exclude each other: give at most one of them")
        json_schema = schema_of(schema)
    elif json_schema is not None:
        json_schema = schema_text(json_schema)
    return _sampling(
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        json_schema=json_schema,
        choices=() if choices is None else _checked_choices(choices),
        **others,
    )


@functools.lru_cache(maxsize=512)
def _sampling(**settings: Any) -> Sampling:
    """Return `Sampling(**settings)`. Cached, because programs make calls with the same few settings again and again."""
    for name in _NUMBERS:
        number = settings.get(name)
        if number is not None and not isinstance(number, (int, float)):
            raise TypeError(f"{name} must be a number, such as {name}=1, not {number!r}")
    return Sampling(**settings)


def _checked_choices(choices: Sequence[str]) -> tuple[str, ...]:
    options = () if isinstance(choices, str) else tuple(choices)
    if not options or not all(isinstance(option, str) and option for option in options):
        raise ValueError(f"choices must be a list of non-empty strings, not {choices!r}")
    return options
