"""What a model call costs the frontend's process, beside what the exchange alone costs on aiohttp and on bare sockets.

The server is a stub in a process of its own. `IN_FLIGHT` calls are under way at any time, and the arms take turns, so
that whatever else the machine does hits all of them. Times are those of this process.
"""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import Any, NamedTuple

import aiohttp

from bench.frontend.report import Spread
from bench.harness.statistics import rotated
from hive import HttpClient, Session, gen

IN_FLIGHT = 20
_ROUNDS = 25
"""Calls of each of those in flight, per repeat."""
_MAX_TOKENS = 16


class Arm(NamedTuple):
    """A way to make calls."""

    call: Callable[[int, int], Awaitable[object]]
    """Makes a call: by which of those in flight, and which of its calls."""
    client: HttpClient | None = None
    """The client of the session in which the calls are made."""


def _prompt(*numbers: int) -> str:
    return (
        f"Use the numbers {' '.join(map(str, numbers))} and the operations + - * / to make 24. "
        "Write the next step of the computation, and what is left after it."
    )


def _body(worker: int) -> dict[str, Any]:
    """What the client sends, for the arms that send it by hand."""
    tag = {"agent": "main", "session": "s-0123456789abcdef", "state": "0", "sample": 0, "replay": "stepwise"}
    return {
        "sampling_params": {
            "max_new_tokens": _MAX_TOKENS,
            "temperature": 0.7,
            "custom_params": {"hive": tag},
        },
        "stream": False,
        "messages": [{"role": "user", "content": _prompt(worker)}],
        "samples": [{"sampling_seed": 3141592653589793238}],
    }


async def client_ms(repeats: int) -> Mapping[str, Spread]:
    """Milliseconds per call, and their ratios repeat by repeat, by the names of the report's fields."""
    with _stub() as port:
        async with _arms(port) as arms:
            times: dict[str, list[float]] = {name: [] for name in arms}
            for turn in range(-1, repeats):
                for name in rotated(list(arms), turn):
                    times[name].append(await _ms_per_call(arms[name], turn))
            return _spreads({name: each[1:] for name, each in times.items()})


@contextmanager
def _stub() -> Iterator[int]:
    """The port of a server that runs meanwhile."""
    command = [sys.executable, "-m", "bench.frontend.stub"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as stub:
        try:
            assert stub.stdout is not None
            yield int(stub.stdout.readline())
        finally:
            stub.kill()


def _spreads(times: Mapping[str, Sequence[float]]) -> dict[str, Spread]:
    ratios = {
        f"client_{by_hand}_ratio{suffix}": Spread.of_ratio(times[client], times[f"{by_hand}_ms"])
        for by_hand in ("raw", "aiohttp")
        for suffix, client in (("", "client_ms_per_call"), ("_new_prompt", "client_ms_per_new_prompt"))
    }
    return {**{name: Spread.of(each) for name, each in times.items()}, **ratios}


async def _ms_per_call(arm: Arm, turn: int) -> float:
    async def work(worker: int) -> None:
        for number in range(_ROUNDS):
            await arm.call(worker, (turn + 1) * _ROUNDS + number)

    gc.collect()
    async with Session(arm.client, seed=1) if arm.client is not None else nullcontext():
        began = time.process_time()
        await asyncio.gather(*map(work, range(IN_FLIGHT)))
        took_s = time.process_time() - began
    return 1e3 * took_s / (IN_FLIGHT * _ROUNDS)


@asynccontextmanager
async def _arms(port: int) -> AsyncIterator[dict[str, Arm]]:
    url = f"http://127.0.0.1:{port}"
    client, merging = HttpClient(url, merge=False), HttpClient(url)
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(text: str) -> None:
        await gen(text, max_tokens=_MAX_TOKENS, temperature=0.7)

    async def raw(worker: int, _number: int) -> None:
        if not idle:
            idle.append(await asyncio.open_connection("127.0.0.1", port))
        connection = idle.pop()
        await _exchange(*connection, json.dumps(_body(worker)).encode())
        idle.append(connection)

    async def by_aiohttp(worker: int, _number: int) -> None:
        async with http.post(f"{url}/hive/generate", json=_body(worker)) as response:
            async for line in response.content:
                json.loads(line)

    try:
        # As many connections as the other arms have.
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            yield {
                "raw_ms": Arm(raw),
                "aiohttp_ms": Arm(by_aiohttp),
                "client_ms_per_call": Arm(lambda worker, _: ask(_prompt(worker)), client),
                "client_ms_per_new_prompt": Arm(lambda worker, number: ask(_prompt(worker, number)), client),
                "client_ms_per_merged_call": Arm(lambda _, number: ask(_prompt(number)), merging),
                "client_ms_per_listed_call": Arm(
                    lambda worker, number: ask(_prompt(worker, number)), merging
                ),
            }
    finally:
        for _, writer in idle:
            writer.close()
        await client.aclose()
        await merging.aclose()


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes) -> None:
    writer.write(
        b"POST /hive/generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    await reader.readuntil(b"\r\n\r\n")
    while size := int(await reader.readuntil(b"\r\n"), 16):
        json.loads(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readexactly(2)
