"""``--trace --serve``: sessions of real agents against real servers, blocks as random tokens, time compressed."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from bench.eviction.policies import POLICIES, Policy
from bench.eviction.report import ServedRow
from bench.harness.client import BenchError, Client
from bench.traces.sessions import Call, Session
from hive.launch_server import cpu_defaults
from hive.server.embedded_model import ensure_embedded_model
from hive.server.server_process import ServerProcess
from sglang_patches.cpu_platform import needed as on_cpu

BLOCK = 64
FIRST_TOKEN, TOKENS = 1000, 40_000
"""Random tokens are drawn from so many ids: all models of the bench have them, and none of them is special."""
START_S = 900.0
"""The first server on a machine compiles kernels for minutes."""


class Pressure(NamedTuple):
    """How a trace is made to fit a server."""

    shrink: int
    """Every block becomes so many times fewer tokens, and so does the pool."""
    speed: float
    """Pauses become so many times shorter."""
    at_once: int
    pool: int
    """Tokens, before they shrink."""

    @property
    def block(self) -> int:
        """Tokens of a block."""
        return BLOCK // self.shrink


@dataclass
class Served:
    """What the requests of a replay got."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    ttft: list[float] = field(default_factory=list)
    """Seconds to the first token, as the client sees it."""
    returning: list[float] = field(default_factory=list)
    """Of all requests but the first of each session."""


def tokens_of(call: Call, width: int) -> list[int]:
    """A prompt: each block as ``width`` tokens, the same ones wherever it stands."""
    blocks = np.frombuffer(call.blocks, np.uint64)[:, None] * np.uint64(width) + np.arange(
        width, dtype=np.uint64
    )
    # The finalizer of splitmix64: neighbours share nothing.
    mixed = (blocks ^ (blocks >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    ids: list[int] = (FIRST_TOKEN + (mixed ^ (mixed >> np.uint64(31))) % np.uint64(TOKENS)).ravel().tolist()
    return ids


@contextmanager
def served_by(policy: Policy, pressure: Pressure, flags: Sequence[str]) -> Iterator[str]:
    """The URL of a server under a policy, stock SGLang or Hive. Raises `ServerDied` when it does not come up."""
    model = [] if "--model-path" in flags else ["--model-path", str(ensure_embedded_model())]
    arguments = [*model, *flags, "--max-total-tokens", str(pressure.pool // pressure.shrink)]
    arguments += ["--skip-tokenizer-init"]
    environment = {"OMP_WAIT_POLICY": "PASSIVE"} if on_cpu() else {}
    if policy.hive:
        arguments += ["--hive-eviction", policy.eviction, "--no-hive-logits-cache"]
    else:
        arguments += cpu_defaults(arguments) if on_cpu() else []
        arguments += ["--radix-eviction-policy", policy.eviction]
    if policy.sessions:
        arguments += ["--enable-session-radix-cache"]
        environment["SGLANG_ENABLE_UNIFIED_RADIX_TREE"] = "1"
    module = "hive.launch_server" if policy.hive else "sglang.launch_server"
    with TemporaryDirectory(prefix="hive-eviction-") as folder:
        server = ServerProcess(arguments, Path(folder) / "log", module=module, environment=environment)
        try:
            server.wait(START_S)
            yield server.url
        finally:
            server.stop()


async def replay_served(url: str, sessions: Sequence[Session], policy: Policy, pressure: Pressure) -> Served:
    """Replay sessions, so many at once. Raises `BenchError` when the server refuses a request."""
    waiting = iter(sessions)
    async with Client(url) as client:
        replay = _Replay(client, policy, pressure)

        async def one_after_another() -> None:
            for session in waiting:
                await replay.session(session)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(pressure.at_once):
                    group.create_task(one_after_another())
        except ExceptionGroup as failed:
            first: BaseException = failed
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            raise (first if isinstance(first, BenchError) else BenchError(repr(first))) from None
    return replay.served


class _Replay:
    def __init__(self, client: Client, policy: Policy, pressure: Pressure) -> None:
        self.client, self.policy, self.pressure = client, policy, pressure
        self.served = Served()
        self.random = random.Random(0)

    async def session(self, session: Session) -> None:
        for call, after in itertools.zip_longest(session.calls, session.calls[1:]):
            await self.request(session, call, after)
            began = time.monotonic()
            if call.children:
                async with asyncio.TaskGroup() as group:
                    for child in call.children:
                        group.create_task(self.child(child))
            if after is not None:
                pause = after.think_s / self.pressure.speed
                await asyncio.sleep(max(0.0, pause - (time.monotonic() - began)))
        if session.ends and self.policy.ends:
            if self.policy.hive:
                await self.client.end_session(_name(session))
            elif self.policy.sessions:
                await self.client.text("POST", "/close_session", json={"session_id": _name(session)})

    async def child(self, session: Session) -> None:
        await asyncio.sleep((session.starts_s or 0.0) / self.pressure.speed)
        await self.session(session)

    async def request(self, session: Session, call: Call, after: Call | None) -> None:
        prompt = tokens_of(call, self.pressure.block)
        body: dict[str, Any] = {
            "input_ids": prompt,
            "sampling_params": {
                "max_new_tokens": max(1, call.output // self.pressure.shrink),
                "ignore_eos": True,
                "temperature": 0,
            },
        }
        if self.policy.hive and self.policy.agents:
            tag: dict[str, Any] = {"agent": call.agent.replace(" ", "-"), "session": _name(session)}
            if self.policy.hints:
                tag["expects"] = self.expects(call, after)
            body["sampling_params"]["custom_params"] = {"hive": tag}
        elif self.policy.sessions:
            body["session_id"] = _name(session)
        answer = await self.client.stream("/generate", body)
        first = answer.first_s - answer.started_s
        self.served.prompt_tokens += len(prompt)
        self.served.cached_tokens += answer.body["meta_info"]["cached_tokens"]
        self.served.ttft.append(first)
        if call is not session.calls[0]:
            self.served.returning.append(first)

    def expects(self, call: Call, after: Call | None) -> dict[str, Any]:
        """What the client knows of its next request: what for, and roughly when."""
        if after is None:
            return {"event": "end"}
        seconds = after.think_s / self.pressure.speed * math.exp(self.random.gauss(0.0, 1.0))
        return {"event": "subagent" if call.children else after.asks, "seconds": seconds}


def _name(session: Session) -> str:
    """As it may stand in a URL."""
    return session.name.replace("/", ".").replace(" ", "-")


def serve(
    sessions: Sequence[Session],
    policies: Sequence[str],
    pressure: Pressure,
    flags: Sequence[str],
    say: Callable[[str], None],
) -> list[ServedRow]:
    """Replay sessions on a server of its own for each policy. Raises `ServerDied` and `BenchError`."""
    rows = []
    for name in policies:
        with served_by(POLICIES[name], pressure, flags) as url:
            began = time.monotonic()
            served = asyncio.run(replay_served(url, sessions, POLICIES[name], pressure))
            wall_s = time.monotonic() - began
        rows.append(
            ServedRow(
                policy=name,
                pool=pressure.pool // pressure.shrink,
                shrink=pressure.shrink,
                speed=pressure.speed,
                sessions=len(sessions),
                requests=len(served.ttft),
                prompt_tokens=served.prompt_tokens,
                prefill_tokens=served.prompt_tokens - served.cached_tokens,
                ttft_ms=_percentiles(served.ttft),
                returning_ttft_ms=_percentiles(served.returning),
                wall_s=wall_s,
            )
        )
        say(f"server, {name}: {wall_s:.0f} s, {rows[-1].prefill_tokens:,} tokens prefilled")
    return rows


def _percentiles(seconds: Sequence[float]) -> tuple[float, float] | None:
    """The 50th and the 99th, in milliseconds; None of nothing."""
    if not seconds:
        return None
    low, high = np.percentile(seconds, [50, 99]) * 1000
    return float(low), float(high)
