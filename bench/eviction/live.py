"""A trace replayed against a running server: the same requests, with the server's own outputs in their prompts.

A prompt of a dialogue contains what the model said before.  A server that is asked again says something else, so the
recorded outputs in later prompts are replaced by the ones that this server gave, of the same length: what a radix
cache can share is then the same as in the recording, whatever the model, even one with random weights.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import httpx

from bench.eviction.outcome import Outcome
from bench.harness.client import BenchError
from bench.traces.trace import HOT_AGENTS, Tokens, Trace

NGRAM = 8
"""Outputs shorter than this stay as recorded: a match could be a coincidence, and little KV is lost with them."""


@dataclass(frozen=True)
class Part:
    """A piece of a prompt: recorded tokens, or the output of an earlier request."""

    tokens: Sequence[int] = ()
    output_of: int | None = None


@dataclass(frozen=True)
class Plan:
    """What a replay sends, and when."""

    prompts: list[list[Part]]
    after: list[list[int]]
    """Requests that must have finished before each one is sent."""
    after_sessions: list[list[str]]
    """Sessions that must have ended before."""


class LiveReplay(NamedTuple):
    """What the requests of a replay got."""

    outcome: Outcome
    seconds: float
    """From the first request to the last answer."""


def plan(trace: Trace) -> Plan:
    """How a trace is replayed: requests wait for what finished before them in their session."""
    after: list[list[int]] = [[] for _ in trace.requests]
    after_sessions: list[list[str]] = [[] for _ in trace.requests]
    finished: dict[str | None, list[int]] = {}
    ended: list[str] = []
    for event in trace.events:
        if event[0] == "end":
            ended.append(event[1])
            continue
        number = event[1]
        session = trace.requests[number].session
        if event[0] == "finish":
            finished.setdefault(session, []).append(number)
            continue
        after[number] = list(finished.get(session, ()))
        if session not in finished:
            after_sessions[number] = list(ended)
    return Plan(_templates(trace), after, after_sessions)


def _templates(trace: Trace) -> list[list[Part]]:
    """Prompts with their session's earlier outputs found in them."""
    said: dict[str | None, dict[tuple[int, ...], list[int]]] = {}
    templates = []
    for number, request in enumerate(trace.requests):
        known = said.setdefault(request.session, {})
        templates.append(list(_parts(trace, request.prompt, known)))
        if len(request.output) >= NGRAM:
            known.setdefault(tuple(request.output[:NGRAM]), []).append(number)
    return templates


def _parts(trace: Trace, prompt: Tokens, known: dict[tuple[int, ...], list[int]]) -> Iterator[Part]:
    start = at = 0
    while at + NGRAM <= len(prompt):
        found = next(
            (
                number
                for number in known.get(tuple(prompt[at : at + NGRAM]), ())
                if prompt[at : at + len(trace.requests[number].output)] == trace.requests[number].output
            ),
            None,
        )
        if found is None:
            at += 1
            continue
        if at > start:
            yield Part(prompt[start:at])
        yield Part(output_of=found)
        start = at = at + len(trace.requests[found].output)
    if start < len(prompt):
        yield Part(prompt[start:])


def client_of(url: str) -> httpx.AsyncClient:
    """For a server that may take its time, with as many requests at once as there are."""
    return httpx.AsyncClient(
        base_url=url, timeout=900, trust_env=False, limits=httpx.Limits(max_connections=None)
    )


async def replay_live(http: httpx.AsyncClient, trace: Trace) -> LiveReplay:
    """Replay a trace on a server that does nothing else.

    Raises `BenchError` when the server refuses a request, does not answer, or does not say what it evicted.
    """
    try:
        return await _Replay(http, trace).run()
    except httpx.HTTPError as lost:
        raise BenchError(f"the server does not answer: {lost!r}") from None
    except ExceptionGroup as group:
        # The first failure cancels all other requests.
        first = group.exceptions[0]
        if isinstance(first, httpx.HTTPError):
            raise BenchError(f"the server does not answer: {first!r}") from None
        raise first from None


class _Replay:
    def __init__(self, http: httpx.AsyncClient, trace: Trace) -> None:
        self.http, self.trace, self.plan = http, trace, plan(trace)
        loop = asyncio.get_running_loop()
        self.outputs: list[asyncio.Future[list[int]]] = [loop.create_future() for _ in trace.requests]
        self.ends = {event[1]: asyncio.Event() for event in trace.events if event[0] == "end"}
        self.outcome = Outcome()

    async def run(self) -> LiveReplay:
        evicted_before = await self._evicted()
        began = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            answers = [tasks.create_task(self._request(number)) for number in range(len(self.trace.requests))]
            for session in self.ends:
                tasks.create_task(self._end(session))
            await asyncio.gather(*answers)
            seconds = time.perf_counter() - began
        self.outcome.evicted_tokens = await self._evicted() - evicted_before
        return LiveReplay(self.outcome, seconds)

    async def _request(self, number: int) -> None:
        for earlier in self.plan.after[number]:
            await self.outputs[earlier]
        for session in self.plan.after_sessions[number]:
            await self.ends[session].wait()
        request = self.trace.requests[number]
        parts = self.plan.prompts[number]
        prompt = list(
            itertools.chain.from_iterable(
                part.tokens if part.output_of is None else self.outputs[part.output_of].result()
                for part in parts
            )
        )
        tag = {"agent": request.agent, "session": request.session}
        params = {
            "max_new_tokens": len(request.output),
            "ignore_eos": True,
            "temperature": 0,
            "custom_params": {"hive": {key: value for key, value in tag.items() if value is not None}},
        }
        body = await self._post("/generate", {"input_ids": prompt, "sampling_params": params})
        cached = body["meta_info"]["cached_tokens"]
        self.outcome.count(request.agent, len(prompt), cached)
        self.outputs[number].set_result(body["output_ids"])

    async def _end(self, session: str) -> None:
        mine = [i for i, request in enumerate(self.trace.requests) if request.session == session]
        await asyncio.gather(*(self.outputs[number] for number in mine))
        answer = await self.http.delete(f"/hive/sessions/{session}")
        if answer.status_code != 200:
            raise BenchError(f"the end of a session: HTTP {answer.status_code}: {answer.text[:500]}")
        self.ends[session].set()

    async def _evicted(self) -> int:
        answer = await self.http.get("/hive/stats")
        known = answer.json().get("radix_cache") if answer.status_code == 200 else None
        if known is None:
            raise BenchError("the server does not say what it evicted: it is not Hive's, or of another cache")
        return int(known["evicted_tokens"])

    async def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = await self.http.post(path, json=body)
        if answer.status_code != 200:
            raise BenchError(f"HTTP {answer.status_code}: {answer.text[:500]}")
        found: dict[str, Any] = answer.json()
        return found


def hot_misses(outcome: Outcome) -> int:
    """Prompt tokens of hot agents that had to be computed."""
    return sum(
        tokens.prompt - tokens.cached for agent, tokens in outcome.by_agent.items() if agent in HOT_AGENTS
    )
