"""What the clients of a soak do: requests of every kind, drawn by chance from a seed."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

import httpx

from bench.bad_requests.requests import BAD_REQUESTS

PATIENCE_S = 120.0

STATES = [
    f"{opening} the {subject}"
    for opening in ("A short story about", "What everybody knows of", "Three facts about")
    for subject in ("sea", "sky", "moon", "city", "fox", "king", "clock", "bread")
]
"""States that are asked for again and again, and so are in the caches."""

AGENTS = 6
STOP_AFTER = 3
"""Chunks of a stream that is dropped."""

Kind = Literal["plain", "chat", "dropped", "resample", "distinct", "samples", "session", "grammar", "bad"]

SHARES: dict[Kind, int] = {
    "plain": 3,
    "chat": 3,
    "dropped": 3,
    "resample": 5,
    "distinct": 2,
    "samples": 2,
    "session": 2,
    "grammar": 2,
    "bad": 3,
}
"""How often each kind comes, beside the others."""


@dataclass(frozen=True)
class Outcome:
    """One request, or the few of one session."""

    kind: Kind
    ended: float
    """By `time.monotonic`."""
    seconds: float
    error: str | None = None
    """What was not as it must be."""
    tokens_replayed: int = 0
    tokens_generated: int = 0

    @property
    def timed(self) -> bool:
        """Whether the time says how fast the server generates: it was asked for an output and gave all of it."""
        return self.error is None and self.kind not in ("dropped", "bad")


class Unexpected(Exception):
    """The server did not answer as it must."""


class Client:
    """One client's requests; all draws come from ``seed``."""

    def __init__(self, http: httpx.AsyncClient, seed: int) -> None:
        self._http = http
        self._random = random.Random(seed)
        self._number = 0
        self._replayed = self._generated = 0

    async def go_on(self) -> Outcome:
        (kind,) = self._random.choices(list(SHARES), list(SHARES.values()))
        self._number += 1
        self._replayed = self._generated = 0
        act: Callable[[], Awaitable[None]] = getattr(self, f"_{kind}")
        started, error = time.monotonic(), None
        try:
            await act()
        except (Unexpected, httpx.HTTPError, ValueError, LookupError) as problem:
            error = f"{kind}: {type(problem).__name__}: {problem}"[:500]
        ended = time.monotonic()
        return Outcome(kind, ended, ended - started, error, self._replayed, self._generated)

    async def _plain(self) -> None:
        # A prompt that was never sent before.
        text = f"Note {self._random.getrandbits(32)}:"
        await self._generate({"text": text, "sampling_params": self._params()})

    async def _chat(self) -> None:
        body = {
            "model": "any",
            "messages": [{"role": "user", "content": self._random.choice(STATES)}],
            "max_tokens": self._random.randint(4, 16),
            "custom_params": {"hive": self._tag()},
        }
        answer = await self._post("/v1/chat/completions", body)
        self._count(answer["choices"][0]["meta_info"])

    async def _dropped(self) -> None:
        body = {"text": self._state(), "sampling_params": self._params(tokens=64), "stream": True}
        async with self._http.stream("POST", "/generate", json=body) as answer:
            if answer.status_code != 200:
                raise Unexpected(f"{answer.status_code} {(await answer.aread())[:200]!r}")
            chunks = 0
            async for line in answer.aiter_lines():
                chunks += line.startswith("data: {")
                if chunks >= STOP_AFTER:
                    return

    async def _resample(self) -> None:
        state = self._state()
        tag = {"session": "soak", "state": state.replace(" ", "-"), "sample": self._random.randrange(8)}
        params = {"temperature": self._random.choice([0.0, 0.3, 0.7]), "max_new_tokens": 12}
        await self._generate({"text": state, "sampling_params": {**params, **self._custom(**tag)}})

    async def _distinct(self) -> None:
        tenant = f"distinct-{self._random.randrange(40)}"
        params = {"max_new_tokens": 4, **self._custom(replay="distinct", tenant=tenant)}
        await self._generate({"text": self._state(), "sampling_params": params})

    async def _samples(self) -> None:
        params = self._params(n=3, sampling_seed=self._random.randrange(4))
        answers = await self._post("/generate", {"text": self._state(), "sampling_params": params})
        if len(answers) != 3:
            raise Unexpected(f"{len(answers)} outputs instead of 3")
        for answer in answers:
            self._count(answer["meta_info"])

    async def _session(self) -> None:
        session = f"soak-{id(self)}-{self._number}"
        agent = f"agent-{self._random.randrange(AGENTS)}"
        await self._post("/hive/agents", {"name": agent, "session": session})
        text = self._state()
        for _ in range(2):
            params = {"max_new_tokens": 8, **self._custom(agent=agent, session=session)}
            text += (await self._generate({"text": text, "sampling_params": params}))["text"]
        answer = await self._http.delete(f"/hive/sessions/{session}")
        if answer.status_code != 200 or answer.json()["requests"] != 2:
            raise Unexpected(f"{answer.status_code} {answer.text[:200]}")

    async def _grammar(self) -> None:
        params = {"regex": "(yes|no), [a-z]{2,9}\\.", **self._custom(), "max_new_tokens": 12}
        answer = await self._generate({"text": self._state(), "sampling_params": params})
        if not answer["text"].startswith(("yes", "no")):
            raise Unexpected(f"a text that the grammar forbids: {answer['text']!r}")

    async def _bad(self) -> None:
        bad = self._random.choice(BAD_REQUESTS)
        headers = {"content-type": "application/json", **bad.headers}
        answer = await self._http.post(bad.path, content=bad.body, headers=headers)
        if not 400 <= answer.status_code < 500:
            raise Unexpected(f"{bad.name}: {answer.status_code} {answer.text[:200]}")

    def _state(self) -> str:
        return self._random.choice(STATES)

    def _tag(self, **tag: Any) -> dict[str, Any]:
        return {"agent": f"agent-{self._random.randrange(AGENTS)}", **tag}

    def _custom(self, **tag: Any) -> dict[str, Any]:
        return {"custom_params": {"hive": self._tag(**tag)}}

    def _params(self, tokens: int | None = None, **params: Any) -> dict[str, Any]:
        tokens = self._random.randint(4, 16) if tokens is None else tokens
        return {"max_new_tokens": tokens, "temperature": 0.7, **self._custom(), **params}

    async def _generate(self, body: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = await self._post("/generate", body)
        self._count(answer["meta_info"])
        return answer

    async def _post(self, path: str, body: dict[str, Any]) -> Any:
        answer = await self._http.post(path, json=body)
        if answer.status_code != 200:
            raise Unexpected(f"{answer.status_code} {answer.text[:300]}")
        return json.loads(answer.content)

    def _count(self, meta: dict[str, Any]) -> None:
        self._replayed += meta["hive"]["tokens_replayed"]
        self._generated += meta["hive"]["tokens_generated"]
