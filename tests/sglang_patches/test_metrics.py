"""What ``/metrics`` shows of agents, read back from the files that SGLang's processes share."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("prometheus_client", reason="needs the server extra: uv pip install 'hive[server]'")

from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

BEGIN = """
from hive.agents.registry import OTHER, AgentRegistry
from hive.agents.window import WindowSettings
from hive.eviction.book import ResidencyBook
from sglang_patches.metrics import SchedulerMetrics

metrics, book = SchedulerMetrics(), ResidencyBook(None)

def ask(agents, name):
    agents.arrived(name, None, 10)
    counts = {"cached_tokens": 5, "generated": 3, "replayed": 2}
    agents.left(name, **counts)
    return counts
"""


def rank(folder: Path, code: str) -> None:
    """Run code in a scheduler process of its own: prometheus_client fixes its mode at import."""
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)}
    subprocess.run([sys.executable, "-c", BEGIN + code], env=environment, check=True)


def shown(folder: Path) -> dict[str, dict[str, float]]:
    """Values by metric and agent."""
    values: dict[str, dict[str, float]] = {}
    for metric in MultiProcessCollector(CollectorRegistry(), str(folder)).collect():
        for sample in metric.samples:
            if "agent" in sample.labels:
                values.setdefault(sample.name, {})[sample.labels["agent"]] = sample.value
    return values


def test_scores_of_ranks_are_not_added_up_but_their_tokens_are(tmp_path: Path) -> None:
    for names in (["writer", "writer", "writer", "tester"], ["writer", "tester", "tester", "tester"]):
        rank(
            tmp_path,
            f"""
agents = AgentRegistry(8, window=WindowSettings(4, 2, collaborative_weight=0.5))
agents.reused("writer", {{"tester": 4}})
for name in {names} + ["next"]:
    ask(agents, name)
book.evicted(book.stored(book.use("writer", None), 30), 30)
book.stored(book.use("writer", None), 12)
metrics.agents(agents, book)
""",
        )
    values = shown(tmp_path)
    # Each is the best of one rank, and shares as much as the other on both.
    for part in ("score", "intrinsic", "collaborative"):
        assert values[f"hive_agent_{part}"] == {"writer": 1.0, "tester": 1.0}
    assert values["hive_agent_resident_tokens"] == {"writer": 24.0}
    assert values["hive_agent_evicted_tokens"] == {"writer": 60.0}
