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
from hive.server.agents.registry import OTHER, AgentRegistry
from hive.server.agents.window import WindowSettings
from hive.server.eviction.accounting import ResidencyAccounting
from sglang_patches.scheduling.metrics import SchedulerMetrics

metrics, accounting = SchedulerMetrics(), ResidencyAccounting(None)

def ask(agents, name):
    agents.arrived(name, None, 10)
    counts = {"cached_tokens": 5, "generated": 3, "replayed": 2}
    agents.left(name, **counts)
    metrics.finished(agents, agents.profile(name).name, 10, **counts)
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
accounting.evicted(accounting.stored(accounting.use("writer", None), 30), 30)
accounting.stored(accounting.use("writer", None), 12)
metrics.agents(agents, accounting)
""",
        )
    values = shown(tmp_path)
    # Each is the best of one rank, and shares as much as the other on both.
    for part in ("score", "intrinsic", "collaborative"):
        assert values[f"hive_agent_{part}"] == {"writer": 1.0, "tester": 1.0}
    assert values["hive_agent_resident_tokens"] == {"writer": 24.0}
    assert values["hive_agent_evicted_tokens"] == {"writer": 60.0}


def test_the_tokens_of_a_forgotten_agent_are_counted_under_other(tmp_path: Path) -> None:
    rank(
        tmp_path,
        """
agents = AgentRegistry(1, window=WindowSettings(1, 1))
agents.reuse_slots(accounting.resident.__contains__, lambda name: None)
use = accounting.use("early", None)
node = accounting.stored(use, 30)
ask(agents, "early")
ask(agents, None)
metrics.agents(agents, accounting)
assert agents.profile("early").name == "early"
accounting.evicted(node, 30)
gone = accounting.totals.pop("early")
accounting.totals[OTHER] = gone
for _ in range(2):
    ask(agents, None)
ask(agents, "late")
assert agents.profile("early").name == OTHER
metrics.agents(agents, accounting)
""",
    )
    values = shown(tmp_path)
    assert values["hive_agent_score"]["early"] == 0.0
    assert values["hive_agent_resident_tokens"] == {"early": 0.0, "other": 0.0}
    assert values["hive_agent_evicted_tokens"] == {"early": 0.0, "other": 30.0}
    # What was counted cannot be taken back, nor can the label: there is none for one more agent.
    assert values["hive_requests_total"] == {"early": 1.0, "other": 4.0}


def test_labels_are_bounded_however_many_agents_are_registered(tmp_path: Path) -> None:
    rank(
        tmp_path,
        """
agents = AgentRegistry(2, window=WindowSettings(1, 1))
agents.reuse_slots(accounting.resident.__contains__, lambda name: None)
for number in range(20):
    agents.register(f"registered-{number}")
    ask(agents, f"registered-{number}")
    for _ in range(3):
        ask(agents, None)
""",
    )
    assert len(shown(tmp_path)["hive_requests_total"]) == 4 + 1


def test_labels_are_bounded_however_many_agents_come_and_go(tmp_path: Path) -> None:
    rank(
        tmp_path,
        """
agents = AgentRegistry(4, window=WindowSettings(1, 1))
agents.reuse_slots(accounting.resident.__contains__, lambda name: None)
for number in range(100):
    if number in (50, 60):
        agents.register(f"registered-{number}")
        ask(agents, f"registered-{number}")
    node = accounting.stored(accounting.use(f"passing-{number}", None), 3)
    ask(agents, f"passing-{number}")
    metrics.agents(agents, accounting)
    accounting.evicted(node, 3)
    for _ in range(3):
        ask(agents, None)
assert len(agents.summary()["agents"]) == 5
""",
    )
    values = shown(tmp_path)
    labels = {f"passing-{number}" for number in range(4)} | {"registered-50", "registered-60"}
    assert values["hive_requests_total"].keys() == labels | {"other"}
    assert values["hive_requests_total"]["other"] == 96 + 300
    for name, by_agent in values.items():
        assert by_agent.keys() <= labels | {"other"}, name
    assert values["hive_agent_evicted_tokens"]["other"] == sum([3] * 95)
