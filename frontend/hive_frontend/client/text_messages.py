"""Prompt Choreography without kept KV: messages are sent as text, in ordinary requests."""

from __future__ import annotations

from collections.abc import Sequence

from hive_frontend.client.cached_message import CachedMessage
from hive_frontend.client.contract import Client, Completion, MessageCall, OnText, Request
from hive_frontend.client.http.client import HttpClient
from hive_frontend.client.messages import Message
from hive_frontend.errors import HiveError
from hive_frontend.wire import SessionHint


def as_text(call: MessageCall) -> Request:
    """Return an ordinary request whose prompt is the texts of all parents, in order, and the header."""
    texts = [parent.content for parent in call.parents]
    return call.request._replace(prompt="".join([*texts, call.request.prompt or ""]))


def prefilled(call: MessageCall, id: str) -> CachedMessage:
    """Return the message of a prefill, for a client without a tokenizer: words count as tokens."""
    text = call.request.prompt or ""
    tokens = max(1, len(text.split())) if call.tokens is None else len(call.tokens)
    return CachedMessage(
        id, call.request.session, text, tokens, call.offset, from_tokens=call.tokens is not None
    )


def decoded(call: MessageCall, id: str, done: Completion) -> CachedMessage:
    """Return the message of a decode, for a client without a tokenizer: words of the header count as tokens."""
    prefix = prefilled(call, id)
    return CachedMessage(
        id,
        prefix.session,
        done.reply,
        prefix.tokens + done.tokens_generated + done.tokens_replayed,
        prefix.offset,
        header=prefix.text,
        output_ids=tuple(done.output_ids),
        from_tokens=prefix.from_tokens,
    )


class TextMessages(Client):
    """Runs programs with `prefill` and `decode` on any model: the baseline of Prompt Choreography (section 3.1).

        run(debate, model=TextMessages("http://localhost:30000"))

    `prefill` sends no request: it keeps the text in the handle. `decode` is an ordinary request, whose prompt is the
    texts of the parents, in order, and the header. So every message is encoded after the full text before it, and the
    server reuses only what its prefix cache has. Offsets and correctors are ignored. Nothing is tokenized: `tokens`,
    `offset` and `end` of messages count words of the texts given, and messages given as tokens are refused.

    `model` is a client, or the URL of a server. All other calls go to it unchanged.
    """

    def __init__(self, model: Client | str) -> None:
        self._model = HttpClient(model) if isinstance(model, str) else model
        self._count = 0

    async def prefill(self, call: MessageCall) -> CachedMessage:
        self._check(call)
        return prefilled(call, self._new_id())

    async def decode(self, call: MessageCall, on_text: OnText | None = None) -> CachedMessage:
        self._check(call)
        return decoded(call, self._new_id(), await self._model.complete(as_text(call), on_text))

    async def delete_message(self, message: CachedMessage) -> None:
        """Do nothing: no server keeps the message."""

    async def complete(self, request: Request, on_text: OnText | None = None) -> Completion:
        return await self._model.complete(request, on_text)

    @property
    def takes_tools(self) -> bool:  # type: ignore[override]
        return self._model.takes_tools

    @property
    def answers_now(self) -> bool:  # type: ignore[override]
        return self._model.answers_now

    def answer_now(self, request: Request) -> Completion | None:
        return self._model.answer_now(request)

    def render(self, messages: Sequence[Message]) -> str:
        return self._model.render(messages)

    async def register(self, agent: str, session: str) -> None:
        await self._model.register(agent, session)

    def register_now(self, agent: str, session: str) -> bool:
        return self._model.register_now(agent, session)

    def hint(self, hint: SessionHint) -> None:
        self._model.hint(hint)

    async def pause_session(self, session: str) -> None:
        await self._model.pause_session(session)

    async def end_session(self, session: str) -> None:
        await self._model.end_session(session)

    async def aclose(self) -> None:
        await self._model.aclose()

    def _new_id(self) -> str:
        self._count += 1
        return f"text-{self._count}"

    @staticmethod
    def _check(call: MessageCall) -> None:
        if call.tokens is not None or any(parent.from_tokens for parent in call.parents):
            raise HiveError("TextMessages sends text only: pass strings to prefill and decode, not tokens")
