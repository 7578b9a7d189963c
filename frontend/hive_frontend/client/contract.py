"""The contract between the runtime and a language model: requests, completions and the `Client` class."""

from __future__ import annotations

import functools
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

from hive_frontend.client.cached_message import CachedMessage
from hive_frontend.client.messages import Message, ToolCall
from hive_frontend.client.reply import Reply
from hive_frontend.client.structured import schema_of
from hive_frontend.client.tools import Tools
from hive_frontend.errors import HiveError, ModelError
from hive_frontend.wire import SessionHint

# Only the characters that all grammar engines let a regex escape; `re.escape` also escapes spaces, which some refuse.
_REGEX_SPECIAL = frozenset(r"\.^$*+?{}[]|()/")
_NUMBERS = ("temperature", "top_p", "top_k")

OnText = Callable[[str], None]
"""Receives an answer piece by piece, as it arrives."""


class CallTimeout(ModelError):
    """A call exceeded its `timeout_s`. It was cancelled, also at the server."""


# Requests, settings and answers are named tuples: a search creates one of each per call, and creating a frozen
# dataclass takes two to three times as long.


class _Settings(NamedTuple):
    max_tokens: int = 256
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop: tuple[str, ...] = ()
    regex: str | None = None
    json_schema: str | None = None
    choices: tuple[str, ...] = ()


class Sampling(_Settings):
    """Sampling settings. `None` leaves a setting to the server.

    `json_schema` is JSON text, so that it is immutable and forks share it.
    """

    __slots__ = ()

    def __new__(
        cls,
        max_tokens: int = 256,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        stop: tuple[str, ...] = (),
        regex: str | None = None,
        json_schema: str | None = None,
        choices: tuple[str, ...] = (),
    ) -> Sampling:
        # The exact type: True is an integer, too.
        if type(max_tokens) is not int or max_tokens < 1:
            raise ValueError(f"max_tokens must be an integer of at least 1, not {max_tokens!r}")
        if temperature is not None and not 0 <= temperature < math.inf:
            raise ValueError(f"temperature must be at least 0, not {temperature!r}")
        if top_p is not None and not 0 < top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, not {top_p!r}")
        if top_k is not None and top_k < 1:
            raise ValueError(f"top_k must be at least 1, not {top_k!r}")
        if (regex is not None) + (json_schema is not None) + bool(choices) > 1:
            grammars = {"regex": regex, "json_schema": json_schema, "choices": choices or None}
            given = [name for name, grammar in grammars.items() if grammar is not None]
            raise ValueError(f"{' and '.join(given)} exclude each other: give at most one of them")
        return tuple.__new__(cls, (max_tokens, temperature, top_p, top_k, stop, regex, json_schema, choices))

    @property
    def grammar(self) -> str | None:
        """The regular expression that the answer must match, from `regex` or `choices`. Not cached."""
        if self.choices:
            return "(" + "|".join(_escape(choice) for choice in self.choices) + ")"
        return self.regex


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
        json_schema = _schema_text(json_schema)
    return _sampling(
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        json_schema=json_schema,
        choices=() if choices is None else checked_choices(choices),
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


def checked_choices(choices: Sequence[str]) -> tuple[str, ...]:
    """Return `choices` as a tuple; `ValueError` unless they are a list of texts."""
    options = () if isinstance(choices, str) else tuple(choices)
    if not options or not all(isinstance(option, str) and option for option in options):
        raise ValueError(f"choices must be a list of non-empty strings, not {choices!r}")
    return options


def _schema_text(schema: Mapping[str, Any] | str) -> str:
    """Return a JSON schema as JSON text. Keys keep their order, in which a model then writes the fields."""
    try:
        return _reformatted(schema) if isinstance(schema, str) else json.dumps(dict(schema))
    except (TypeError, ValueError) as error:
        raise ValueError(f"json_schema must be a JSON schema, as a dict or as text: {error}") from None


@functools.lru_cache(maxsize=256)
def _reformatted(text: str) -> str:
    """Return the same JSON in one format. Cached, because a program passes the same text at every call."""
    return json.dumps(json.loads(text))


def _escape(text: str) -> str:
    return "".join(f"\\{char}" if char in _REGEX_SPECIAL else char for char in text)


class Request(NamedTuple):
    """One model call. The same request to the same model gives the same tokens."""

    messages: tuple[Message, ...]
    """The dialogue to continue; empty for a raw completion."""
    sampling: Sampling
    seed: int
    """Base seed of the state and the call, 0 .. 2**63 - 1. `sample_seed` combines it with `sample`."""
    agent: str
    session: str
    state: str
    sample: int
    """Number of the sample drawn from this state."""
    prompt: str | None = None
    """The text to continue, without a chat template; None for a dialogue."""
    name: str | None = None
    """Name of the state that makes the call. Not sent to servers; used by scripted models and in messages."""
    model: str | None = None
    """Name of the model, or of the LoRA adapter, at the server; None for the client's default."""
    timeout_s: float | None = None
    """Timeout of the call in seconds, including retries and the pauses between them; None for the client's default."""
    attempts: int | None = None
    """How often the call is tried in all if the transport fails; None for the client's default."""
    tools: Tools | None = None
    """The tools that the model may call; None if there are none."""

    @property
    def text(self) -> str:
        """The raw prompt or the last message, for people to read."""
        return self.prompt if self.prompt is not None else self.messages[-1].content


class Completion(NamedTuple):
    """A model's answer to a `Request`."""

    text: str
    tokens_generated: int
    """Tokens of the answer that the model computed."""
    tokens_replayed: int = 0
    """Tokens of the answer that the server's Logits Cache replayed."""
    finish_reason: str | None = None
    prompt_ids: Sequence[int] = ()
    """Tokens of the prompt; empty if the server does not report them. A Hive server does for dialogues."""
    output_ids: Sequence[int] = ()
    """Tokens of the answer as the model wrote them; empty if the server does not report them."""
    prompt_tokens: int = 0
    """Number of prompt tokens; 0 if the server does not report it, or if another call in the same HTTP request is
    charged for them."""
    cached_tokens: int = 0
    """How many of them were hits in the server's prefix cache; 0 if the server does not report it."""
    cost: float | None = None
    """Cost of the answer; None if the prices are unknown."""
    tool_calls: tuple[ToolCall, ...] = ()
    """The tools that the model calls, instead of a final answer."""

    @property
    def reply(self) -> Reply:
        """The answer as agent code sees it."""
        return Reply(
            self.text,
            self.tokens_generated,
            self.tokens_replayed,
            self.finish_reason,
            self.prompt_tokens,
            self.cached_tokens,
            self.cost,
            self.tool_calls,
        )


Corrector = str | Mapping[str, Any]
"""Which part of the parents' KV the server recomputes: `"none"`, `"recompute-all"`, or a kind with its settings, such
as `{"kind": "first-k", "share": 0.15}` and `{"kind": "blend", "share": 0.15, "block": 32}`."""


class MessageCall(NamedTuple):
    """A message to make: its text or header, its parents, and their positions."""

    request: Request
    """The call. Its `prompt` is the text to prefill, or the header of a message to decode; empty if `tokens` is
    given."""
    parents: tuple[CachedMessage, ...] = ()
    offsets: tuple[int | None, ...] = ()
    """The position of each parent; None places it right after the one before it. Empty if all are None."""
    new_offset: int | None = None
    """The position of the message; None places it right after the last parent."""
    tokens: tuple[int, ...] | None = None
    """The text or the header as tokens."""
    corrector: Corrector | None = None
    """None for the server's default. Ignored by a prefill."""

    @property
    def offset(self) -> int:
        """The position at which the message begins, with the defaults of offsets applied."""
        if self.new_offset is not None:
            return self.new_offset
        end = 0
        for parent, offset in zip(self.parents, self.offsets or [None] * len(self.parents), strict=True):
            end = (end if offset is None else offset) + parent.tokens
        return end


class Client(ABC):
    """A language model.

    One client may serve many sessions at once. Cancelling a call's coroutine must cancel the call at the server.
    """

    @abstractmethod
    async def complete(self, request: Request, on_text: OnText | None = None) -> Completion:
        """Return the answer to one request.

        With `on_text` the answer is streamed: `on_text` receives its pieces as they arrive. Together they are the text
        of the completion.

        Raises:
            ModelError: if the model refuses the request.
            CallTimeout: if it takes too long.
        """

    model: str | None = None
    """Name of the model for requests that name none; None for the server's default."""

    @property
    def provider(self) -> str:
        """Who serves the model, as traces name it. Before the first answer it may be a guess."""
        return "custom"

    takes_tools: bool = False
    """Whether `complete` sends `Request.tools` and turns with tools to the model by itself. For other clients these are
    written into the prompt, and a JSON schema makes the model write calls as text (`client.tool_text`)."""

    answers_now: bool = False
    """Whether `answer_now` can return answers."""

    def answer_now(self, request: Request) -> Completion | None:
        """Return the answer if it is available without waiting; None if `complete` must be awaited.

        A request that is answered here is not passed to `complete`.
        """
        return None

    async def prefill(self, call: MessageCall) -> CachedMessage:
        """Prefill a message, and keep its KV; `HiveError` if the server does not support it."""
        raise self._keeps_no_messages("prefill")

    async def decode(self, call: MessageCall, on_text: OnText | None = None) -> CachedMessage:
        """Have the model continue a header, and keep the KV of the whole message, whose text is a `Reply`.

        `on_text` is that of `complete`. `HiveError` if the server does not support it.
        """
        raise self._keeps_no_messages("decode")

    async def delete_message(self, message: CachedMessage) -> None:
        """Delete a message. Does nothing if the server does not have it."""
        raise self._keeps_no_messages("delete")

    def _keeps_no_messages(self, call: str) -> HiveError:
        return HiveError(
            f"{call}: {type(self).__name__} cannot keep messages. Run with an HttpClient for a server started with "
            "python -m hive.launch_server --hive-kv-segments, or with TextMessages(model), which sends texts instead"
        )

    def render(self, messages: Sequence[Message]) -> str:
        """Return the prompt that the model would see for a dialogue, as text; `ModelError` if it is unknown.

        Not a coroutine, because people call it to inspect a dialogue. It may block for one short request.
        """
        raise ModelError(f"{type(self).__name__} cannot show the prompt that the model sees")

    async def register(self, agent: str, session: str) -> None:  # noqa: B027
        """Tell the server that `agent` will make calls in `session`. Precedes its first call."""

    def register_now(self, agent: str, session: str) -> bool:
        """Register without waiting, if possible; False if `register` must be awaited."""
        return False

    def hint(self, hint: SessionHint) -> None:  # noqa: B027
        """Tell the server what to expect of a session, in the background: it neither waits nor fails."""

    async def pause_session(self, session: str) -> None:  # noqa: B027
        """Tell the server that `session` waits for people, and makes no call before they answer."""

    async def end_session(self, session: str) -> None:  # noqa: B027
        """Tell the server that `session` will make no more calls."""

    async def aclose(self) -> None:  # noqa: B027
        """Close the connections of the running event loop. The client can still be used afterwards."""


def check_limits(timeout_s: float, attempts: int) -> None:
    """Raise `ValueError` unless both are valid."""
    if not 0 < timeout_s < math.inf:
        raise ValueError(f"timeout_s must be a number of seconds above 0, not {timeout_s!r}")
    if type(attempts) is not int or attempts < 1:
        raise ValueError(f"attempts must be an integer of at least 1, not {attempts!r}")
