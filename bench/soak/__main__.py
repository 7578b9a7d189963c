"""``python -m bench.soak --seconds N --json FILE``: mixed traffic, and what it does to a Hive server with time.

Plain and chat requests, streams that are dropped, samples of known states, distinct samples, several outputs at once,
sessions that begin and end, grammars, and bad requests, from a few clients at once. The report has memory, latency and
hit ratio by window, and how they drift. Without ``--url`` it starts a server with the embedded model, whose Logits
Cache is small enough to be full early in the run.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from bench.harness.command import Command, Run, above_0, positive
from bench.harness.memory import ServerMemory
from bench.soak.report import Memory, Report, counted, drifts, table, windows
from bench.soak.traffic import PATIENCE_S, Client, Outcome
from hive.server.server_process import ServerDied, ServerProcess

FLAGS = ("--max-total-tokens", "8192", "--hive-logits-cache-bytes", "2M")
SAMPLE_S = 0.5
"""Between two looks at the server's memory."""
COUNTERS = (*("lookups", "hits", "hit_ratio", "nodes", "bytes", "evicted_nodes", "bytes_given_up"),)


class Soak:
    """One run against the server at a URL."""

    def __init__(self, url: str, seconds: float, concurrency: int, seed: int) -> None:
        self.url, self.seconds, self.concurrency, self.seed = url, seconds, concurrency, seed
        self.outcomes: list[Outcome] = []
        self.memory: list[Memory] = []
        self.began = self.ended = 0.0

    async def run(self) -> tuple[list[str], dict[str, Any]]:
        """The traffic; the errors that the server then finds in its accounting, and its counters."""
        async with httpx.AsyncClient(base_url=self.url, timeout=PATIENCE_S, trust_env=False) as http:
            self.began = time.monotonic()
            watching = asyncio.create_task(self._watch())
            clients = [Client(http, self.seed * 1000 + number) for number in range(self.concurrency)]
            try:
                await asyncio.gather(*map(self._serve, clients))
                self.ended = time.monotonic()
            finally:
                watching.cancel()
            problems = await self._problems(http)
            stats = (await http.get("/hive/stats")).raise_for_status().json()["logits_cache"]
        return problems, {name: stats[name] for name in COUNTERS if stats and name in stats}

    async def _serve(self, client: Client) -> None:
        while time.monotonic() < self.began + self.seconds:
            outcome = await client.go_on()
            self.outcomes.append(outcome)
            if outcome.error is not None:
                # A server that is gone refuses thousands of requests in a second.
                await asyncio.sleep(0.2)

    async def _watch(self) -> None:
        server = ServerMemory(self.url)
        while True:
            size = await asyncio.to_thread(server.host_bytes)
            if size is not None:
                self.memory.append(Memory(time.monotonic(), size))
            await asyncio.sleep(SAMPLE_S)

    async def _problems(self, http: httpx.AsyncClient) -> list[str]:
        """Streams that were dropped end some seconds later."""
        found: dict[str, Any] = {}
        for _ in range(60):
            found = (await http.post("/hive/check")).raise_for_status().json()
            if found["idle"]:
                return list(found["problems"])
            await asyncio.sleep(0.5)
        return [*found["problems"], "requests run on, though no client waits for them"]

    def report(self, run: Run, problems: list[str], counters: dict[str, Any]) -> Report:
        """All of it in figures."""
        kinds, examples = counted(self.outcomes)
        return Report(
            **{**run.how_made(), "seconds": round(self.ended - self.began, 1)},
            concurrency=self.concurrency,
            seed=self.seed,
            requests=len(self.outcomes),
            errors=sum(outcome.error is not None for outcome in self.outcomes),
            error_examples=examples,
            problems=problems,
            by_kind=kinds,
            **drifts(self.outcomes, self.memory, self.began, self.ended),
            windows=windows(self.outcomes, self.memory, self.began, self.ended),
            logits_cache=counters,
        )


def measure(run: Run, url: str) -> Report:
    """Send the traffic to the server at a URL; exits when it is lost so that it cannot even be asked how it is."""
    options = run.options
    soak = Soak(url, options.seconds, options.concurrency, options.seed)
    try:
        problems, counters = asyncio.run(soak.run())
    except httpx.HTTPError as error:
        raise SystemExit(f"bench: the server does not answer after the run: {error or type(error)}") from None
    return soak.report(run, problems, counters)


def main(argv: Sequence[str] | None = None) -> None:
    parser = Command("bench.soak", __doc__, width=120)
    parser.option("--seconds", above_0, "N", "of traffic", required=True)
    parser.option("--url", str, about="of a running Hive server (by default one is started)")
    parser.option("--concurrency", positive, "N", "clients at once", default=4)
    parser.option("--seed", int, "N", "of all that is drawn", default=0)
    parser.server_flags("the server")
    run = parser.run(argv)
    if run.options.url is not None:
        report = measure(run, run.options.url)
    else:
        with tempfile.TemporaryDirectory() as folder:
            server = ServerProcess([*FLAGS, *run.options.flags], Path(folder) / "server.log")
            try:
                server.wait()
                report = measure(run, server.url)
            except ServerDied as error:
                raise SystemExit(f"bench: {error}") from None
            finally:
                server.stop()
    total = f"{report.requests} requests, {report.errors} errors"
    run.finish(report, [table(report), *report.problems, *report.error_examples, total])


if __name__ == "__main__":
    main()
