"""A server that is short of host memory, one that is killed under a program, and one that loses its scheduler.

One after the other, so that two servers suffice.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from hive_frontend import HttpClient, RunResult, agent, gen, run

from hive.server.server_process import ServerProcess, slowdown
from sglang_patches.scheduling.cache_memory import LOOPS
from tests.faults.processes import scheduler_of
from tests.server.replay_client import PROMPTS, Ask, ReplayClient

pytestmark = pytest.mark.server

STEPS = 6
FLAGS = ("--dtype", "float32", "--max-total-tokens", "4096", "--enable-metrics")
SHORT = ("--hive-min-free-host-bytes", "512T")
"""More than is free anywhere: the host is always short of memory."""


class Place:
    """A port, and the server that is there at the moment."""

    def __init__(self, launch_server: Callable[..., ServerProcess], *flags: str) -> None:
        self._launch_server = launch_server
        self.server = launch_server(*FLAGS, *flags)

    def kill(self) -> None:
        """As the kernel does when memory runs out, or as a machine that goes down."""
        os.killpg(self.server.process.pid, signal.SIGKILL)
        self.server.stop()

    def restart(self) -> None:
        self.server = self._launch_server(*FLAGS, port=self.server.port, wait=False)


@pytest.fixture(scope="module")
def place(launch_server: Callable[..., ServerProcess]) -> Iterator[Place]:
    """Servers of its own: they are killed."""
    place = Place(launch_server, *SHORT)
    yield place
    place.server.stop()


def requests_at(server: ServerProcess) -> int:
    """Requests that have reached the scheduler."""
    agents = httpx.get(f"{server.url}/hive/agents", trust_env=False, timeout=30).json()["agents"]
    return int(sum(agent["requests"] for agent in agents))


def test_short_host_memory_empties_the_logits_cache_and_the_server_serves_on(place: Place) -> None:
    client = ReplayClient(place.server.url)
    ask = Ask(PROMPTS[0], {"sampling_seed": 1, "max_new_tokens": 8, "ignore_eos": True})
    plain = client.generate(ask, "off")
    client.generate(ask).assert_same(plain)
    # The memory is looked at every so many steps.
    client.generate(Ask(PROMPTS[1], {"max_new_tokens": LOOPS, "ignore_eos": True}), "off")
    client.wait_for("budget_bytes", 0, 0)
    client.generate(ask).assert_same(plain)
    counts = client.cache()
    assert (counts["bytes"], counts["nodes"], counts["budget_bytes"]) == (0, 0, 0)
    assert counts["evicted_nodes"] >= counts["tokens_recorded"] > 0
    assert client.post("/hive/check", {})["problems"] == []
    metrics = client.http.get("/metrics").text
    assert "\nhive_logits_cache_budget_bytes" in metrics
    assert "bytes below --hive-min-free-host-bytes" in place.server.log_path.read_text()
    client.http.close()


def replies(journal: str) -> int:
    """Answers that a journal keeps."""
    return sum('"reply"' in line for line in journal.splitlines())


@agent
async def story(opening: str) -> list[str]:
    parts = [opening]
    for _ in range(STEPS):
        parts.append(await gen(" ".join(parts), raw=True, max_tokens=12, temperature=0.7))
    return parts


def test_a_program_waits_for_its_server_and_nothing_is_computed_twice(place: Place, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    found: list[RunResult[list[str]]] = []
    before = requests_at(place.server)

    def program() -> None:
        found.append(run(story, "It was", model=HttpClient(place.server.url), seed=3, checkpoint=journal))

    running = threading.Thread(target=program)
    running.start()
    while (reached := requests_at(place.server) - before) < STEPS // 2 + 1:
        time.sleep(0.02)
    place.kill()
    answered = replies(journal.read_text())
    place.restart()
    assert running.is_alive()
    running.join(200 * slowdown())
    assert not running.is_alive()
    (result,) = found
    assert requests_at(place.server) == STEPS - answered
    assert reached - answered in (0, 1), "only the step that was in flight is computed again"
    place.server.wait()
    # The same program, killed with its server, goes on from its journal and asks for nothing that it has.
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[:-2]))
    known = replies(journal.read_text())
    before = requests_at(place.server)
    again = run(story, "It was", model=HttpClient(place.server.url), checkpoint=journal)
    assert again.value == result.value
    assert known == STEPS - 2
    assert requests_at(place.server) - before == STEPS - known


def test_a_scheduler_that_crashes_takes_the_server_with_it_at_once(place: Place) -> None:
    place.server.wait()
    scheduler_of(place.server).send_signal(signal.SIGKILL)
    started = time.monotonic()
    try:
        status = place.server.process.wait(20 * slowdown())
    except subprocess.TimeoutExpired:
        pytest.fail(f"the launcher hangs:\n{place.server.log()}")
    assert time.monotonic() - started < 10 * slowdown()
    assert status == 1
    last = place.server.log().splitlines()[-1]
    assert last.startswith("hive: the server ends with status 1: scheduler")
    assert last.endswith("was killed by SIGKILL")
