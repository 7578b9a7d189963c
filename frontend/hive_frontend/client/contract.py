"""What the runtime needs of a language model."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from hive_frontend.client.cached_message import CachedMessage
from hive_frontend.client.messages import Message
from hive_frontend.client.reply import Reply
from hive_frontend.errors import HiveError, ModelError

# Only what regex dialects of grammar engines agree on; `re.escape` also escapes blanks, which some refuse.
_REGEX_SPECIAL = frozenset(r"\.^$*+?{}[]|()/")

OnText = Callable[[str], None]
"""Takes an answer piece by piece, as it comes."""


class CallTimeout(ModelError):
    """A call took longer than its `timeout_s`. It was abandoned, and the server told so."""


# Requests, settings and answers are tuples: a search makes one of each per call, and frozen dataclasses take two to
# three times as long to make.


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
    """How the next tokens are drawn. `None` leaves a setting to the server.

    `json_schema` is the schema as JSON text, hence immutable and shared by forks.
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
            raise ValueError(f"{' and '.join(given)} exclude each other: give one grammar at most")
        return tuple.__new__(cls, (max_tokens, temperature, top_p, top_k, stop, regex, json_schema, choices))

    @property
    def grammar(self) -> str | None:
        """The regular expression that the answer must match, from `regex` or `choices`; made anew every time."""
        if self.choices:
            return "(" + "|".join(_escape(choice) for choice in self.choices) + ")"
        return self.regex


def schema_text(schema: Mapping[str, Any] | str) -> str:
    """A JSON schema as JSON text. Keys stay in their order: it is the order in which a model writes the fields."""
    try:
        loaded = json.loads(schema) if isinstance(schema, str) else dict(schema)
        return json.dumps(loaded)
    except (TypeError, ValueError) as error:
        raise ValueError(f"json_schema is no JSON schema: {error}") from None


def _escape(text: str) -> str:
    return "".join(f"\\{char}" if char in _REGEX_SPECIAL else char for char in text)


class Request(NamedTuple):
    """One model call, complete: the same request to the same model gives the same tokens."""

    messages: tuple[Message, ...]
    """The dialogue to go on with; empty for a raw completion."""
    sampling: Sampling
    seed: int
    """Base seed of the state and the call, 0 .. 2**63 - 1; with `sample` it makes the seed (`sample_seed`)."""
    agent: str
    session: str
    state: str
    sample: int
    """Number of the draw from this state."""
    prompt: str | None = None
    """The text to go on with as it stands, without a chat template; None for a chat."""
    name: str | None = None
    """Name of the state that makes the call. Not sent: it is for scripted models and for people."""
    model: str | None = None
    """Name of the model, or of the LoRA adapter, at the server; None for the client's own choice."""
    timeout_s: float | None = None
    """Seconds until the call is abandoned, attempts and pauses together; None for the client's own choice."""
    attempts: int | None = None
    """How often the call is tried when the transport fails; None for the client's own choice."""

    @property
    def text(self) -> str:
        """The prompt as a person would read it: the raw prompt, or the last message."""
        return self.prompt if self.prompt is not None else self.messages[-1].content


class Completion(NamedTuple):
    """A model's answer to a `Request`."""

    text: str
    tokens_generated: int
    """Tokens of the answer that the model computed."""
    tokens_replayed: int = 0
    """Tokens of the answer that a cache of the server served instead."""
    finish_reason: str | None = None
    prompt_ids: Sequence[int] = ()
    """Tokens of the prompt; empty where the server does not tell. A Hive server does for dialogues."""
    output_ids: Sequence[int] = ()
    """Tokens of the answer as the model wrote them; empty where the server does not tell."""
    prompt_tokens: int = 0
    """Tokens of the prompt; 0 where the server does not tell, and where they are on the bill of another call that
    travelled in the same request."""
    cached_tokens: int = 0
    """Those of them that the server had in its prefix cache; 0 where it does not tell."""
    cost: float | None = None
    """What the answer cost; None where no prices are known."""

    @property
    def reply(self) -> Reply:
        """What agent code gets of it."""
        return Reply(
            self.text,
            self.tokens_generated,
            self.tokens_replayed,
            self.finish_reason,
            self.prompt_tokens,
            self.cached_tokens,
            self.cost,
        )


Corrector = str | Mapping[str, Any]
"""Which of the keys and values of parents a server computes again: `"none"`, `"recompute-all"`, or a kind with its
settings, such as `{"kind": "first-k", "share": 0.15}` and `{"kind": "blend", "share": 0.15, "block": 32}`."""


class MessageCall(NamedTuple):
    """A message to be made: what it begins with, which messages it sees, and where all of them stand."""

    request: Request
    """Who makes it, and how the model goes on. `prompt` is the text of a message to prefill, or the header of one to
    decode; empty where `tokens` says it."""
    parents: tuple[CachedMessage, ...] = ()
    offsets: tuple[int | None, ...] = ()
    """The position of each parent, None for right behind the one before it; empty when all are None."""
    new_offset: int | None = None
    """The position of the message; None for right behind the last parent."""
    tokens: tuple[int, ...] | None = None
    """The text or the header as tokens."""
    corrector: Corrector | None = None
    """None for the server's choice. Of no meaning to a prefill."""

    @property
    def offset(self) -> int:
        """Where the message begins, by the rule for offsets that are left out."""
        if self.new_offset is not None:
            return self.new_offset
        end = 0
        for parent, offset in zip(self.parents, self.offsets or [None] * len(self.parents), strict=True):
            end = (end if offset is None else offset) + parent.tokens
        return end


class Client(ABC):
    """A language model.

    One client may serve many sessions at once. Cancelling a call's coroutine must abandon the call.
    """

    @abstractmethod
    async def complete(self, request: Request, on_text: OnText | None = None) -> Completion:
        """Answer one request; `ModelError` when the model refuses it, `CallTimeout` when it takes too long.

        With `on_text` the answer is streamed: `on_text` gets its pieces as they come, which together make up
        the text of the completion.
        """

    answers_now: bool = False
    """Whether it is worth asking for answers that are there at once."""

    def answer_now(self, request: Request) -> Completion | None:
        """The answer, if the model has it without waiting for anything; None when `complete` must be awaited.

        A request that is answered here is not given to `complete` any more.
        """
        return None

    async def prefill(self, call: MessageCall) -> CachedMessage:
        """Encode a message, and keep its keys and values; `HiveError` where the model's server cannot."""
        raise self._keeps_no_messages("prefill")

    async def decode(self, call: MessageCall, on_text: OnText | None = None) -> CachedMessage:
        """Have the model go on with a header, and keep the keys and values of the whole; its text is a `Reply`.

        `on_text` is that of `complete`. `HiveError` where the model's server cannot.
        """
        raise self._keeps_no_messages("decode")

    async def delete_message(self, message: CachedMessage) -> None:
        """Forget a message; nothing happens where it is unknown."""
        raise self._keeps_no_messages("delete")

    def _keeps_no_messages(self, call: str) -> HiveError:
        return HiveError(
            f"{call}: {type(self).__name__} keeps no messages. Give the run an HttpClient of a server that was started "
            "with python -m hive.launch_server --hive-kv-segments, or TextMessages(model), which sends texts instead"
        )

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt that the model would see for a dialogue, as text; `ModelError` where nobody can tell.

        Not a coroutine: it is for people who look at a dialogue, and may block for one short request.
        """
        raise ModelError(f"{type(self).__name__} cannot show the prompt that the model sees")

    async def register(self, agent: str, session: str) -> None:  # noqa: B027
        """Tell the model's server that `agent` will call within `session`; comes before its first call."""

    def register_now(self, agent: str, session: str) -> bool:
        """The same, if nothing has to be waited for; False when `register` must be awaited."""
        return False

    async def end_session(self, session: str) -> None:  # noqa: B027
        """Tell the model's server that `session` sends no more calls."""

    async def aclose(self) -> None:  # noqa: B027
        """Let go of the connections of the running event loop. The client may be used again afterwards."""


def check_limits(timeout_s: float, attempts: int) -> None:
    """`ValueError` unless the two can bound a call."""
    if not 0 < timeout_s < math.inf:
        raise ValueError(f"timeout_s must be a number of seconds above 0, not {timeout_s!r}")
    if type(attempts) is not int or attempts < 1:
        raise ValueError(f"attempts must be an integer of at least 1, not {attempts!r}")
