"""What the runtime needs of a language model."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hive_frontend.dialogue import Message

# Only what regex dialects of grammar engines agree on; `re.escape` also escapes blanks, which some refuse.
_REGEX_SPECIAL = frozenset(r"\.^$*+?{}[]|()/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the next tokens are drawn. `None` leaves a setting to the server."""

    max_tokens: int = 256
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop: tuple[str, ...] = ()
    regex: str | None = None
    json_schema: str | None = None
    """The schema as JSON text, hence immutable and shared by forks."""
    choices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.max_tokens, bool) or not isinstance(self.max_tokens, int) or self.max_tokens < 1:
            raise ValueError(f"max_tokens must be an integer of at least 1, not {self.max_tokens!r}")
        if self.temperature is not None and not 0 <= self.temperature < math.inf:
            raise ValueError(f"temperature must be at least 0, not {self.temperature!r}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, not {self.top_p!r}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k must be at least 1, not {self.top_k!r}")
        grammars = {"regex": self.regex, "json_schema": self.json_schema, "choices": self.choices or None}
        given = [name for name, grammar in grammars.items() if grammar is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} exclude each other: give one grammar at most")

    @property
    def grammar(self) -> str | None:
        """The regular expression that the answer must match, from `regex` or `choices`."""
        if self.choices:
            return "(" + "|".join(_escape(choice) for choice in self.choices) + ")"
        return self.regex


def schema_text(schema: Mapping[str, Any] | str) -> str:
    """A JSON schema as JSON text, in a fixed order of keys so that equal schemas are equal strings."""
    try:
        loaded = json.loads(schema) if isinstance(schema, str) else dict(schema)
        return json.dumps(loaded, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise ValueError(f"json_schema is no JSON schema: {error}") from None


def _escape(text: str) -> str:
    return "".join(f"\\{char}" if char in _REGEX_SPECIAL else char for char in text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One model call, complete: the same request to the same model gives the same tokens."""

    messages: tuple[Message, ...]
    """The dialogue to go on with; empty for a raw completion."""
    prompt: str | None = None
    """The text to go on with as it stands, without a chat template; None for a chat."""
    sampling: Sampling
    seed: int
    """0 .. 2**63 - 1."""
    agent: str
    session: str
    state: str
    sample: int
    name: str | None = None
    """Name of the state that makes the call. Not sent: it is for scripted models and for people."""

    @property
    def text(self) -> str:
        """The prompt as a person would read it: the raw prompt, or the last message."""
        return self.prompt if self.prompt is not None else self.messages[-1].content


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A model's answer to a `Request`."""

    text: str
    tokens_generated: int
    """Tokens of the answer that the model computed."""
    tokens_replayed: int = 0
    """Tokens of the answer that a cache of the server served instead."""
    finish_reason: str | None = None


class Client(ABC):
    """A language model.

    One client may serve many sessions at once. Cancelling a call's coroutine must abandon the call.
    """

    @abstractmethod
    async def complete(self, request: Request) -> Completion:
        """Answer one request; `ModelError` when the model refuses it."""

    async def register(self, agent: str, session: str) -> None:  # noqa: B027
        """Tell the model's server that `agent` will call within `session`; comes before its first call."""

    async def end_session(self, session: str) -> None:  # noqa: B027
        """Tell the model's server that `session` sends no more calls."""

    async def aclose(self) -> None:  # noqa: B027
        """Let go of the connections of the running event loop. The client may be used again afterwards."""
