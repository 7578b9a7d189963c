"""Models for tests: answers from a script or a function instead of from a server."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence

from hive_frontend.client.cached_message import CachedMessage
from hive_frontend.client.contract import CallTimeout, Client, Completion, MessageCall, OnText, Request
from hive_frontend.client.guard import RealCallForbidden, forbid_real_calls
from hive_frontend.client.messages import Message
from hive_frontend.client.spelling import fits
from hive_frontend.client.structured import InvalidAnswer
from hive_frontend.client.text_messages import as_text, decoded, prefilled
from hive_frontend.errors import HiveError, ModelError

__all__ = [
    "FunctionModel",
    "RealCallForbidden",
    "Script",
    "ScriptExhausted",
    "ScriptedModel",
    "forbid_real_calls",
]

Answer = str | Completion
Script = Sequence[Answer] | Callable[[Request], Answer] | Mapping[str, "Answer | Script"]

_PIECE = re.compile(r"\s*\S+\s*\Z|\s*\S+|\s+")


class ScriptExhausted(HiveError):
    """A scripted model was asked more than its script has answers for."""


class FunctionModel(Client):
    """A model whose answers come from a function of the `Request`, and which remembers what it was asked.

    The function may be `async`. It gives a string, whose words count as tokens, none of them replayed; or a
    `Completion`, to say otherwise. Streams hand answers out word by word.

    It keeps messages as a server does, and refuses parents that were deleted or have ended with their session. For
    `decode` the function gets a request whose prompt is the texts of the parents, in their order, and the header;
    `prefill` asks it nothing. Words count as tokens in both.

    `delay` gives the seconds that a call takes, to try out orders of completion. Without it, and with a function
    that is not `async`, calls are answered at once.

    An answer that the call's `choices` or `regex` do not allow raises `InvalidAnswer`, as it does where an endpoint
    ignores grammars. `grammars=False` hands it out: the model then stands for a server whose grammar the client
    trusts, and which does not keep to it.
    """

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
        # What a subclass does in `complete` or `register` must not be gone around.
        self.answers_now = (
            delay is None
            and not _is_async(function)
            and kind.complete is FunctionModel.complete
            and kind.register is FunctionModel.register
        )
        self.calls: list[Request] = []
        """The requests so far, in the order in which they came."""
        self.agents: list[str] = []
        """The agents that registered, in order."""
        self.ended: list[str] = []
        """The sessions that ended, in order."""
        self.made: list[MessageCall] = []
        """The messages to prefill and to decode so far, in the order in which they came."""
        self._kept: dict[str, CachedMessage] = {}

    def answer_now(self, request: Request) -> Completion | None:
        if not self.answers_now:
            return None
        self.calls.append(request)
        answer = self._function(request)
        if isinstance(answer, (str, Completion)):
            return self._checked(request, answer)
        raise TypeError(
            f"the function of a FunctionModel gave {type(answer).__name__}, not a string or a Completion; "
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
                    f"no answer within {request.timeout_s} s (timeout_s) to {_describe(request)}"
                ) from None
        if on_text is not None:
            for piece in _PIECE.findall(completion.text):
                on_text(piece)
                # Whoever reads the stream gets a chance to do so between its pieces.
                await asyncio.sleep(0)
        return completion

    async def _wait(self, request: Request) -> Completion:
        self.calls.append(request)
        answer = self._function(request)
        if self._delay is not None:
            await asyncio.sleep(self._delay(request))
        return self._checked(request, answer if isinstance(answer, (str, Completion)) else await answer)

    def _checked(self, request: Request, answer: Answer) -> Completion:
        completion = Completion(answer, len(answer.split()), 0, "stop") if isinstance(answer, str) else answer
        if self._grammars and not fits(request.sampling, completion.text, completion.finish_reason):
            what = "choices" if request.sampling.choices else "regex"
            raise InvalidAnswer(
                f"the function of a FunctionModel gave {completion.text[:200]!r}, which is not what {what} allows, to "
                f"{_describe(request)}; grammars=False hands such answers out",
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
                    f"there is no message {parent.id!r}: {parent!r} was deleted, or ended", status=400
                )
        self.made.append(call)
        return f"m-{len(self.made)}"

    def _keep(self, message: CachedMessage) -> CachedMessage:
        self._kept[message.id] = message
        return message

    def render(self, messages: Sequence[Message]) -> str:
        """The dialogue in a plain form: there is no template."""
        return "".join(f"[{message.role}]\n{message.content}\n\n" for message in messages) + "[assistant]\n"

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
    """A model that answers from a script, and remembers what it was asked.

    The script is one of

    - a list: the answers in the order of the calls;
    - a function of the `Request`, which tells agent, state, sample, seed, prompt, regex and all else
      (for an `async` one there is `FunctionModel`);
    - a dict from a state's name, or else an agent's name, or else `"*"`, to a list, a function, or one string
      that answers every call.

    The answers of lists go out in the order in which calls are made; where branches run concurrently, only a
    function makes that order irrelevant. Tokens are counted as words: an answer of three words is three
    tokens, none of them replayed. Give a `Completion` instead of a string to say otherwise.

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
        if isinstance(script, (str, Completion)):
            return script
        number = self._used.get(key, 0)
        if number >= len(script):
            entry = f"entry {key[1:]!r} of the script" if key else "the script"
            raise ScriptExhausted(
                f"{entry} has {len(script)} answers, all of which were used before {_describe(request)}"
            )
        self._used[key] = number + 1
        return script[number]


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
