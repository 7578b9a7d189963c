"""Models for tests, which answer from a script or a function instead of a server."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeGuard

from hive_frontend.client.body_fields import matches_grammar
from hive_frontend.client.cached_message import CachedMessage
from hive_frontend.client.contract import CallTimeout, Client, Completion, MessageCall, OnText, Request
from hive_frontend.client.guard import RealCallForbidden, forbid_real_calls
from hive_frontend.client.messages import Message, ToolCall
from hive_frontend.client.structured import InvalidAnswer
from hive_frontend.client.text_messages import as_text, decoded, prefilled
from hive_frontend.client.tool_text import calls_as_text
from hive_frontend.errors import HiveError, ModelError

__all__ = [
    "FunctionModel",
    "RealCallForbidden",
    "Script",
    "ScriptExhausted",
    "ScriptedModel",
    "call",
    "forbid_real_calls",
]

Answer = str | Completion | ToolCall | list[ToolCall]
Script = Sequence[Answer] | Callable[[Request], Answer] | Mapping[str, "Answer | Script"]

_PIECE = re.compile(r"\s*\S+\s*\Z|\s*\S+|\s+")


def call(tool: str, /, **arguments: Any) -> ToolCall:
    """Return a call of a tool, as the answer of a model: `ScriptedModel([call("look_up", word="tea"), "A drink."])`.

    For several calls in one answer, give a list of them.
    """
    return ToolCall(f"call-{tool}", tool, json.dumps(arguments))


class ScriptExhausted(HiveError):
    """The script of a scripted model has no answer for a call."""


class FunctionModel(Client):
    """A model that answers with a function of the `Request`, and records its calls.

    The function may be `async`. It returns a string, whose words count as generated tokens, a `call` of a tool or a
    list of them, or a `Completion` for other token counts. Streams deliver answers word by word.

    Like a server, the model keeps messages, and refuses parents that were deleted or whose session has ended. For
    `decode` the function gets a request whose prompt is the texts of the parents, in order, and the header. `prefill`
    does not call the function. Words count as tokens in both.

    `delay` returns the seconds that a call takes, to test different orders of completion. Without it, and with a
    function that is not `async`, calls are answered at once.

    An answer that violates the call's `choices` or `regex` raises `InvalidAnswer`, as with an endpoint that ignores
    grammars. With `grammars=False` the answer is returned unchecked: the model then acts as a server whose grammar the
    client trusts but which violates it.
    """

    takes_tools = True

    def __init__(
        self,
        function: Callable[[Request], Answer | Awaitable[Answer]],
        *,
        delay: Callable[[Request], float] | None = None,
        grammars: bool = True,
    ) -> None:
        self._function = function
        self._grammars = grammars
        self._delay = delay
        kind = type(self)
        # Answering at once bypasses `complete` and `register`, so not if a subclass overrides them.
        self.answers_now = (
            delay is None
            and not _is_async(function)
            and kind.complete is FunctionModel.complete
            and kind.register is FunctionModel.register
        )
        self.calls: list[Request] = []
        """The requests so far, in order of arrival."""
        self.agents: list[str] = []
        """The agents that registered, in order."""
        self.ended: list[str] = []
        """The sessions that ended, in order."""
        self.made: list[MessageCall] = []
        """The `prefill` and `decode` calls so far, in order of arrival."""
        self._kept: dict[str, CachedMessage] = {}

    def answer_now(self, request: Request) -> Completion | None:
        if not self.answers_now:
            return None
        self.calls.append(request)
        answer = self._function(request)
        if _is_answer(answer):
            return self._checked(request, answer)
        raise TypeError(
            f"the function of a FunctionModel returned {type(answer).__name__}, not a string or a Completion; "
            "declare it with async def if it waits for something"
        )

    async def complete(self, request: Request, on_text: OnText | None = None) -> Completion:
        completion = self.answer_now(request)
        if completion is None:
            try:
                async with asyncio.timeout(request.timeout_s) as limit:
                    completion = await self._wait(request)
            except TimeoutError:
                if not limit.expired():
                    raise
                raise CallTimeout(
                    f"no answer within {request.timeout_s} s (timeout_s) for {_describe(request)}"
                ) from None
        if on_text is not None:
            for piece in _PIECE.findall(completion.text):
                on_text(piece)
                # Let the reader of the stream run between pieces.
                await asyncio.sleep(0)
        return completion

    async def _wait(self, request: Request) -> Completion:
        self.calls.append(request)
        answer = self._function(request)
        if self._delay is not None:
            await asyncio.sleep(self._delay(request))
        return self._checked(request, await answer if isinstance(answer, Awaitable) else answer)

    def _checked(self, request: Request, answer: Answer) -> Completion:
        completion = _completion(request, answer)
        if self._grammars and not matches_grammar(
            request.sampling, completion.text, completion.finish_reason
        ):
            what = "choices" if request.sampling.choices else "regex"
            raise InvalidAnswer(
                f"the function of a FunctionModel returned {completion.text[:200]!r}, which {what} does not allow, for "
                f"{_describe(request)}; pass grammars=False to return such answers unchecked",
                text=completion.text,
            )
        return completion

    async def prefill(self, call: MessageCall) -> CachedMessage:
        return self._keep(prefilled(call, self._new_id(call)))

    async def decode(self, call: MessageCall, on_text: OnText | None = None) -> CachedMessage:
        id = self._new_id(call)
        return self._keep(decoded(call, id, await self.complete(as_text(call), on_text)))

    async def delete_message(self, message: CachedMessage) -> None:
        self._kept.pop(message.id, None)

    def _new_id(self, call: MessageCall) -> str:
        for parent in call.parents:
            if parent.id not in self._kept:
                raise ModelError(
                    f"there is no message {parent.id!r}: {parent!r} was deleted, or its session has ended",
                    status=400,
                )
        self.made.append(call)
        return f"m-{len(self.made)}"

    def _keep(self, message: CachedMessage) -> CachedMessage:
        self._kept[message.id] = message
        return message

    def render(self, messages: Sequence[Message]) -> str:
        """Return the dialogue as plain text; there is no chat template."""
        return "".join(f"[{message.role}]\n{message.shown}\n\n" for message in messages) + "[assistant]\n"

    async def register(self, agent: str, session: str) -> None:
        self.agents.append(agent)

    def register_now(self, agent: str, session: str) -> bool:
        if not self.answers_now:
            return False
        self.agents.append(agent)
        return True

    async def end_session(self, session: str) -> None:
        self.ended.append(session)
        self._kept = {id: message for id, message in self._kept.items() if message.session != session}


class ScriptedModel(FunctionModel):
    """A model that answers from a script, and records its calls.

    The script is one of

    - a list: the answers in the order of the calls;
    - a function of the `Request`, which has the agent, state, sample, seed, prompt, regex and so on
      (for an `async` function use `FunctionModel`);
    - a dict from a state's name, an agent's name or `"*"`, looked up in this order, to a list, a function, or one
      string that answers every call.

    A list gives its answers in the order in which calls are made. That order varies when branches run concurrently;
    use a function then. Tokens are counted as words: an answer of three words is three generated tokens. Give a
    `Completion` instead of a string for other token counts.

    `delay` and `grammars` are those of a `FunctionModel`.
    """

    def __init__(
        self, script: Script, *, delay: Callable[[Request], float] | None = None, grammars: bool = True
    ) -> None:
        super().__init__(self._answer, delay=delay, grammars=grammars)
        self._script = script
        self._used: dict[str, int] = {}

    def _answer(self, request: Request) -> Answer:
        script: Answer | Script = self._script
        key = ""
        while isinstance(script, Mapping):
            known = [name for name in (request.name, request.agent, "*") if name in script]
            if not known:
                raise ScriptExhausted(
                    f"the script has no answer for {_describe(request)}; it has entries for "
                    f"{', '.join(map(repr, script)) or 'nothing'}"
                )
            key, script = f"{key}/{known[0]}", script[known[0] or ""]
        if callable(script):
            script = script(request)
        if isinstance(script, (str, Completion, ToolCall)):
            return script
        number = self._used.get(key, 0)
        if number >= len(script):
            entry = f"entry {key[1:]!r} of the script" if key else "the script"
            raise ScriptExhausted(
                f"{entry} has {len(script)} answers, and all were used before {_describe(request)}; add answers, or "
                "give a function"
            )
        self._used[key] = number + 1
        return script[number]


def _is_answer(answer: object) -> TypeGuard[Answer]:
    return isinstance(answer, (str, Completion, ToolCall, list))


def _completion(request: Request, answer: Answer) -> Completion:
    if isinstance(answer, Completion):
        return answer
    if isinstance(answer, str):
        return Completion(answer, len(answer.split()), 0, "stop")
    calls = [answer] if isinstance(answer, ToolCall) else answer
    if request.tools is None:
        # The request says that calls are to be written as text.
        return _completion(request, calls_as_text(calls))
    return Completion("", len(calls), 0, "tool_calls", tool_calls=tuple(calls))


def _is_async(function: Callable[..., object]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004
    )


def _describe(request: Request) -> str:
    text = request.text if len(request.text) <= 80 else request.text[:77] + "..."
    return (
        f"the call of agent {request.agent!r} in state {request.state} ({request.name or 'unnamed'}), "
        f"sample {request.sample}: {text!r}"
    )
