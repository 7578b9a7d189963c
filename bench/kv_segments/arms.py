"""The arms: the calls of a workflow as Hive's choreography, or as prompts that are put together from texts.

The paper's section 3.1: its baseline concatenates the parents' texts and relies on prefix caching; the naive
implementation has no cache at all.  ``warm`` is no way to work, but a bound: what reuse of exact prefixes could reach.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Unpack, cast, get_args

from bench.harness.client import Client, Streamed
from bench.kv_segments.accounting import KV, kv_of
from bench.kv_segments.encoding import Encoding
from examples.choreography.workflows import How, Where

ArmName = Literal["choreographed", "baseline", "naive", "warm", "stock"]
ARM_NAMES: tuple[ArmName, ...] = get_args(ArmName)
"""``stock`` is the baseline on SGLang as it comes; the other arms share one Hive server with KV segments."""
USUAL_ARMS: tuple[ArmName, ...] = ("choreographed", "baseline", "naive")
"""What runs where no arms are named."""

Corrector = str | dict[str, Any]
"""As the server reads it."""


@dataclass(frozen=True)
class Call:
    """One call of a workflow, and what it took."""

    name: str
    decode: bool
    """Not a prefill."""
    started_s: float
    """By `time.perf_counter`, as the next two."""
    first_s: float
    """When the first token was here; of a prefill, its end."""
    ended_s: float
    generated: int
    kv: KV
    """Of the context."""

    @property
    def ttft_s(self) -> float:
        """From sending to the first token."""
        return self.first_s - self.started_s


@dataclass(frozen=True)
class Made:
    """A message of an arm; `examples.choreography.workflows.Message`."""

    text: str
    tokens: tuple[int, ...] = ()
    """Header and what was generated; where messages are concatenated."""
    id: str = ""
    """By which the server knows it; where it does."""


@dataclass
class Arm:
    """A `examples.choreography.workflows.Choreographer` that notes what its calls take.

    Every decoded message is as long as it may be: arms must not differ in how much they decode (section 4.2).
    """

    client: Client
    encoding: Encoding
    calls: list[Call] = field(default_factory=list)
    beside_s: float = 0.0
    """Time that the workflow took and that is not its own."""
    _asked: list[tuple[dict[str, Any], asyncio.Future[Streamed]]] = field(default_factory=list)
    """Decodes that were asked for in this turn of the loop."""
    _sending: asyncio.Task[None] | None = None
    """Kept, or the loop might forget it."""

    async def begin(self) -> None:
        """Start a workflow from cold caches."""
        await self.client.flush()
        self.calls = []
        self.beside_s = 0.0

    async def end(self) -> None:
        """Give back what the workflow left on the server."""

    def _note(self, name: str, answer: Streamed, kv: KV) -> None:
        times = (answer.started_s, answer.first_s, answer.ended_s)
        self.calls.append(Call(name, True, *times, len(answer.body["output_ids"]), kv))

    async def _sent_together(self, body: dict[str, Any]) -> Streamed:
        """The answer to a decode, which is sent with all others that the program asks for at once."""
        waiting = asyncio.get_running_loop().create_future()
        self._asked.append((body, waiting))
        if len(self._asked) == 1:
            self._sending = asyncio.create_task(self._send())
        return cast(Streamed, await waiting)

    async def _send(self) -> None:
        # The calls of one `gather` begin in one turn of the loop, before this task has its own.
        asked, self._asked = self._asked, []
        try:
            answers = await self._send_all([body for body, _ in asked])
        except BaseException as error:
            for _, waiting in asked:
                if not waiting.done():
                    waiting.set_exception(error)
            return
        for (_, waiting), answer in zip(asked, answers, strict=True):
            if not waiting.done():
                waiting.set_result(answer)

    async def _send_all(self, bodies: Sequence[dict[str, Any]]) -> list[Streamed]:
        """The answers to decodes that were asked for at once, by arms that care."""
        raise NotImplementedError


@dataclass
class Choreographed(Arm):
    """``POST /hive/prefill`` and ``POST /hive/decode``."""

    corrector: Corrector = "none"
    session: str = ""

    async def begin(self) -> None:
        await super().begin()
        self.session = f"bench-{uuid.uuid4().hex}"

    async def end(self) -> None:
        await self.client.end_session(self.session)

    async def prefill(self, text: str, parents: Sequence[Made] = (), **where: Unpack[Where]) -> Made:
        name = where.get("name", "")
        body = {"tokens": self.encoding(text, name), **_arrangement(parents, where)}
        started = time.perf_counter()
        answer = await self.client.post("/hive/prefill", body, self._headers)
        ended = time.perf_counter()
        self.calls.append(Call(name, False, started, ended, ended, 0, kv_of(answer.get("kv"))))
        return Made(text, id=answer["id"])

    async def decode(self, header: str, parents: Sequence[Made] = (), **how: Unpack[How]) -> Made:
        name = how.get("name", "")
        body = {
            "header_tokens": self.encoding(header, name),
            "sampling_params": _params(how),
            "corrector": self.corrector,
            **_arrangement(parents, how),
        }
        # Parallel calls are a list: the API has it for them.
        answer = await self._sent_together(body)
        self._note(name, answer, kv_of(answer.body.get("kv")))
        return Made(answer.body.get("text") or "", id=answer.body["id"])

    async def _send_all(self, bodies: Sequence[dict[str, Any]]) -> list[Streamed]:
        if len(bodies) == 1:
            return [await self.client.stream("/hive/decode", bodies[0], self._headers)]
        return await self.client.stream_all("/hive/decode", bodies, self._headers)

    @property
    def _headers(self) -> dict[str, str]:
        return {"x-hive-session": self.session}


@dataclass
class Concatenated(Arm):
    """``POST /generate`` with the tokens of all parents, one after the other; offsets are ignored."""

    cached: bool = True
    """Whether the server may reuse what it has of a prompt's beginning."""

    async def prefill(self, text: str, parents: Sequence[Made] = (), **where: Unpack[Where]) -> Made:
        return Made(text, tuple(self.encoding(text, where.get("name", ""))))

    async def decode(self, header: str, parents: Sequence[Made] = (), **how: Unpack[How]) -> Made:
        name = how.get("name", "")
        begin = self.encoding(header, name)
        context = [token for parent in parents for token in parent.tokens]
        body: dict[str, Any] = {"input_ids": context + begin, "sampling_params": _params(how)}
        if not self.cached:
            # No other request has this key, so nothing in the radix tree is found.
            body["extra_key"] = uuid.uuid4().hex
        answer = await self._answered(body)
        # A header that the tree has, too, is no part of the context.
        exact = min(answer.body["meta_info"]["cached_tokens"], len(context))
        self._note(name, answer, KV(exact=exact, missing=len(context) - exact))
        generated = answer.body["output_ids"]
        return Made(answer.body.get("text") or "", (*begin, *generated))

    async def _answered(self, body: dict[str, Any]) -> Streamed:
        return await self.client.stream("/generate", body)


@dataclass
class Warm(Concatenated):
    """The baseline where the radix tree has every prompt already: each is sent once before it counts.

    Nothing is left to compute then but a token for each call.
    """

    async def _answered(self, body: dict[str, Any]) -> Streamed:
        return await self._sent_together(body)

    async def _send_all(self, bodies: Sequence[dict[str, Any]]) -> list[Streamed]:
        began = time.perf_counter()
        once = {"max_new_tokens": 1, "temperature": 0}
        await self._each([{**body, "sampling_params": once} for body in bodies])
        self.beside_s += time.perf_counter() - began
        return await self._each(bodies)

    async def _each(self, bodies: Sequence[dict[str, Any]]) -> list[Streamed]:
        return await asyncio.gather(*(self.client.stream("/generate", body) for body in bodies))


def _params(how: How) -> dict[str, Any]:
    params = {"max_new_tokens": how["max_tokens"], "ignore_eos": True, "temperature": how["temperature"]}
    return {**params, "sampling_seed": how["seed"]}


def _arrangement(parents: Sequence[Made], where: Where) -> dict[str, Any]:
    """The fields of a call that say what it sees, and where."""
    offsets = {key: where.get(key) for key in ("offsets", "new_offset")}
    given = {key: value for key, value in offsets.items() if value is not None}
    return {"parents": [parent.id for parent in parents], **given}
