"""``python -m bench.soak --seconds N --json FILE``: mixed traffic, and what it does to a Hive server with time.

Plain and chat requests, streams that are dropped, samples of known states, distinct samples, several outputs at once,
sessions that begin and end, grammars, and bad requests, from a few clients at once. The report has memory, latency and
hit ratio by window, and how they drift. Without ``--url`` it starts a server with the embedded model, whose Logits
Cache is small enough to be full early in the run.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console

from bench.logits_cache.machine import machine, public_command, versions
from bench.peers.memory import ServerMemory
from bench.report_file import not_writable
from bench.soak.report import Memory, Report, counted, drifts, table, windows
from bench.soak.traffic import PATIENCE_S, Client, Outcome
from hive.server.server_process import ServerDied, ServerProcess

FLAGS = ("--max-total-tokens", "8192", "--hive-logits-cache-bytes", "2M")
SAMPLE_S = 0.5
"""Between two looks at the server's memory."""
COUNTERS = (
    "lookups",
    "hits",
    "hit_ratio",
    "nodes",
    "bytes",
    "evicted_nodes",
    "rows_corrupt",
    "bytes_given_up",
)


class Soak:
    """One run against the server at a URL."""

    def __init__(self, url: str, seconds: float, concurrency: int, seed: int) -> None:
        self.url, self.seconds, self.concurrency, self.seed = url, seconds, concurrency, seed
        self.outcomes: list[Outcome] = []
        self.memory: list[Memory] = []
        self.began = self.ended = 0.0

    async def run(self) -> tuple[list[str], dict[str, Any]]:
        """The traffic; what the server then finds wrong with its books, and its counters."""
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
        return [*found["problems"], "requests run on, though nobody waits for them"]

    def report(self, command: str, problems: list[str], counters: dict[str, Any]) -> Report:
        """All of it in figures."""
        kinds, examples = counted(self.outcomes)
        drift = drifts(self.outcomes, self.memory, self.began, self.ended)
        return Report(
            command=command,
            versions=versions(),
            machine=machine(),
            seconds=round(self.ended - self.began, 1),
            concurrency=self.concurrency,
            seed=self.seed,
            requests=len(self.outcomes),
            errors=sum(outcome.error is not None for outcome in self.outcomes),
            error_examples=examples,
            problems=problems,
            by_kind=kinds,
            rss_drift=drift.rss,
            p50_drift=drift.p50,
            p99_drift=drift.p99,
            hit_ratio_drift=drift.hit_ratio,
            windows=windows(self.outcomes, self.memory, self.began, self.ended),
            logits_cache=counters,
        )


def measure(soak: Soak, command: str) -> Report:
    """Run it.

    Raises:
        SystemExit: when the server is lost so that it cannot even be asked how it is.
    """
    try:
        problems, counters = asyncio.run(soak.run())
    except httpx.HTTPError as error:
        raise SystemExit(f"bench: the server does not answer after the run: {error or type(error)}") from None
    return soak.report(command, problems, counters)


def main(argv: Sequence[str] | None = None) -> None:
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="python -m bench.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, required=True, metavar="N", help="of traffic")
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="write the report here")
    parser.add_argument("--url", help="of a running Hive server (by default one is started)")
    parser.add_argument(
        "--concurrency", type=int, default=4, metavar="N", help="clients at once (default: 4)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of all that is drawn (default: 0)")
    parser.add_argument("flags", nargs="*", help="more flags of the server, after --")
    options = parser.parse_args(arguments)
    if options.seconds <= 0 or options.concurrency < 1:
        parser.error("--seconds must be positive, and --concurrency at least 1")
    if problem := not_writable(options.json):
        parser.error(f"--json: {options.json.name} cannot be written: {problem}")
    command = public_command(arguments, "bench.soak")
    if options.url is not None:
        report = measure(Soak(options.url, options.seconds, options.concurrency, options.seed), command)
    else:
        with tempfile.TemporaryDirectory() as folder:
            server = ServerProcess([*FLAGS, *options.flags], Path(folder) / "server.log")
            try:
                server.wait()
                report = measure(
                    Soak(server.url, options.seconds, options.concurrency, options.seed), command
                )
            except ServerDied as error:
                raise SystemExit(f"bench: {error}") from None
            finally:
                server.stop()
    options.json.write_text(report.model_dump_json(indent=1) + "\n")
    Console(width=None if sys.stdout.isatty() else 120).print(table(report))
    for text in (*report.problems, *report.error_examples):
        print(text)
    print(f"report: {options.json.name} ({report.requests} requests, {report.errors} errors)")


if __name__ == "__main__":
    main()
