"""What a request costs each process of a server: one that is wholly replayed, beside stock SGLang's for one token."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from statistics import median
from typing import Any, Literal
from urllib.parse import urlsplit

import aiohttp
import psutil  # type: ignore[import-untyped]
from pydantic import BaseModel
from rich.table import Table

from bench.harness.client import BenchError, together
from bench.harness.memory import listening
from bench.harness.tables import table
from bench.logits_cache.workloads import Prompts

LIST = 20
"""Requests in a list."""
AT_ONCE = 8
"""HTTP requests in flight."""
TOKENS = 8
"""Of a replayed answer; stock generates one token."""
ROUNDS = 3
ROUND_REQUESTS = 200
"""Of either kind, in one round of one server."""

Kind = Literal["hive", "stock"]
PROCESSES = ("api", "scheduler", "detokenizer")


class TollRow(BaseModel):
    """One server, asked in one way; the medians of all rounds."""

    server: Kind
    listed: bool
    """Whether requests came in lists of :data:`LIST`."""
    requests_per_s: float
    cpu_ms: dict[str, float]
    """Per request, by process. On a CPU a scheduler's has the model's own work in it."""


async def measure_toll(urls: dict[str, str], prompts: Prompts) -> list[TollRow]:
    """Ask both servers in turns.

    Raises `BenchError` when a server runs elsewhere, or does not answer as it must.
    """
    kinds: list[Kind] = [kind for kind in ("hive", "stock") if kind in urls]
    processes = {kind: _processes(urls[kind]) for kind in kinds}
    found: dict[tuple[Kind, bool], list[tuple[float, dict[str, float]]]] = {}
    states = [list(state.input_ids) for state in prompts.test[:LIST]]
    async with aiohttp.ClientSession() as session:
        for kind in kinds:
            # Twice: the first time records, and fills the radix cache.
            for _ in range(2):
                await _all(session, urls[kind], [_body(kind, ids, False) for ids in states])
        for _ in range(ROUNDS):
            for listed in (False, True):
                for kind in kinds:
                    each = LIST if listed else 1
                    bodies = [
                        _body(kind, states[number % len(states)], listed)
                        for number in range(ROUND_REQUESTS // each)
                    ]
                    before = _cpu_s(processes[kind])
                    began = time.perf_counter()
                    await _all(session, urls[kind], bodies)
                    took = time.perf_counter() - began
                    spent = {
                        name: 1000 * (seconds - before[name]) / (each * len(bodies))
                        for name, seconds in _cpu_s(processes[kind]).items()
                    }
                    found.setdefault((kind, listed), []).append((each * len(bodies) / took, spent))
    return [
        TollRow(
            server=kind,
            listed=listed,
            requests_per_s=round(median(speed for speed, _ in rounds), 1),
            cpu_ms={name: round(median(spent[name] for _, spent in rounds), 3) for name in rounds[0][1]},
        )
        for (kind, listed), rounds in found.items()
    ]


def toll_table(rows: Sequence[TollRow]) -> Table:
    """The rows as they are printed."""
    cells = (
        (
            *(row.server, f"in lists of {LIST}" if row.listed else "alone"),
            *(f"{row.cpu_ms.get(name, 0):.2f}" for name in PROCESSES),
            f"{row.requests_per_s:,.0f}",
        )
        for row in rows
    )
    title = f"CPU ms per request: {TOKENS} replayed tokens, or one of stock's"
    return table(title, ("server", "requests", *PROCESSES, "requests/s"), cells, left=2)


def _body(kind: Kind, ids: list[int], listed: bool) -> tuple[str, bytes]:
    params = {"temperature": 0, "ignore_eos": True, "max_new_tokens": 1 if kind == "stock" else TOKENS}
    path = "/generate"
    body: dict[str, Any] = {"input_ids": ids, "sampling_params": params}
    if listed and kind == "stock":
        body["input_ids"] = [ids] * LIST
    elif listed:
        path = "/hive/generate"
        body["samples"] = [{"sampling_seed": seed} for seed in range(LIST)]
    return path, json.dumps(body).encode()


async def _all(session: aiohttp.ClientSession, url: str, bodies: Sequence[tuple[str, bytes]]) -> None:
    left = iter(bodies)

    async def worker() -> None:
        for path, body in left:
            headers = {"content-type": "application/json"}
            async with session.post(url + path, data=body, headers=headers) as answer:
                said = await answer.read()
                if answer.status != 200 or b'"error"' in said:
                    raise BenchError(f"HTTP {answer.status}: {said[:500]!r}")

    await together(worker() for _ in range(AT_ONCE))


def _processes(url: str) -> dict[str, psutil.Process]:
    """The processes of the server that listens at a URL on this machine."""
    pid = listening(urlsplit(url).port)
    if pid is None:
        raise BenchError(f"{url}: no process of this machine listens there; its CPU time cannot be read")
    api = psutil.Process(pid)
    found = {"api": api}
    for child in api.children(recursive=True):
        title = " ".join(child.cmdline())
        found |= {name: child for name in PROCESSES[1:] if f"sglang::{name}" in title}
    return found


def _cpu_s(processes: dict[str, psutil.Process]) -> dict[str, float]:
    times = {name: process.cpu_times() for name, process in processes.items()}
    return {name: spent.user + spent.system for name, spent in times.items()}
