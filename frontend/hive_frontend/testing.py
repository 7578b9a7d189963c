"""Models for tests: answers from a script instead of from a server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from hive_frontend.client.base import Client, Completion, Request
from hive_frontend.errors import HiveError

Answer = str | Completion
Script = Sequence[Answer] | Callable[[Request], Answer] | Mapping[str, "Answer | Script"]


class ScriptExhausted(HiveError):
    """A scripted model was asked more than its script has answers for."""


class ScriptedModel(Client):
    """A model that answers from a script and remembers what it was asked.

    The script is one of

    - a list: the answers in the order of the calls;
    - a function of the `Request`, which tells agent, state, sample, seed, prompt, regex and all else;
    - a dict from a state's name, or else an agent's name, or else `"*"`, to a list, a function, or one string
      that answers every call.

    The answers of lists go out in the order in which calls are made; where branches run concurrently, only a
    function makes that order irrelevant. Tokens are counted as words: an answer of three words is three
    tokens, none of them replayed. Give a `Completion` instead of a string to say otherwise.

    `delay` gives the seconds that a call takes, to try out orders of completion.
    """

    def __init__(self, script: Script, *, delay: Callable[[Request], float] | None = None) -> None:
        self._script = script
        self._delay = delay
        self._used: dict[str, int] = {}
        self.calls: list[Request] = []
        """The requests so far, in the order in which they came."""
        self.agents: list[str] = []
        """The agents that registered, in order."""
        self.ended: list[str] = []
        """The sessions that ended, in order."""

    async def complete(self, request: Request) -> Completion:
        self.calls.append(request)
        answer = self._answer(request)
        if self._delay is not None:
            await asyncio.sleep(self._delay(request))
        if isinstance(answer, Completion):
            return answer
        return Completion(text=answer, tokens_generated=len(answer.split()), finish_reason="stop")

    async def register(self, agent: str, session: str) -> None:
        self.agents.append(agent)

    async def end_session(self, session: str) -> None:
        self.ended.append(session)

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


def _describe(request: Request) -> str:
    text = request.text if len(request.text) <= 80 else request.text[:77] + "..."
    return (
        f"the call of agent {request.agent!r} in state {request.state} ({request.name or 'unnamed'}), "
        f"sample {request.sample}: {text!r}"
    )
