"""The system's clock may jump: nothing of Hive's asks it for a decision."""

from __future__ import annotations

import ast
import itertools
import time
from pathlib import Path

import pytest
from hive_frontend import Budget, agent, gen, run
from hive_frontend.testing import FunctionModel

from hive.server.agents.registry import AgentRegistry
from hive.server.agents.window import WindowSettings

ROOT = Path(__file__).parents[2]
PACKAGES = ("hive", "sglang_patches", "frontend/hive_frontend")

SHOWN = frozenset(
    {
        "hive/server/events/sessions.py",
        "hive/server/traffic_record.py",
        "frontend/hive_frontend/evaluation/runner.py",
        "frontend/hive_frontend/runs/store.py",
    }
)
"""Modules that stamp what they show to people or write into records."""

DATED = frozenset({"frontend/hive_frontend/client/http/transport.py"})
"""Modules that are told dates: a server may say by one when to ask again. (No call waits longer than it may take.)"""

CLOCKS = frozenset({"time", "time_ns", "now", "utcnow", "today", "localtime", "gmtime", "ctime"})
"""Names of what tells the time of day, in the modules `time` and `datetime`."""


def wall_clocks(source: str) -> list[int]:
    """Lines that read the system's clock."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in CLOCKS:
            owner = (
                node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
            )
            if owner in ("time", "datetime", "date"):
                found.append(node.lineno)
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            found += [node.lineno for name in node.names if name.name in CLOCKS]
    return found


def test_the_search_finds_clocks() -> None:
    for source in (
        "import time\ntime.time()",
        "from time import time_ns",
        "datetime.datetime.now()",
        "date.today()",
    ):
        assert wall_clocks(source)
    assert not wall_clocks("import time\ntime.monotonic()\ntime.perf_counter()\nself.time = 1\nrun.time()")


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_reads_the_time_of_day(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    reading = {
        file.relative_to(ROOT).as_posix(): lines for file in files if (lines := wall_clocks(file.read_text()))
    }
    assert {name: lines for name, lines in reading.items() if name not in SHOWN | DATED} == {}


@pytest.fixture
def jumping(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that is days off, now ahead and now behind, whenever it is asked."""
    real, days = time.time, itertools.cycle([30, -30, 365, 0])
    monkeypatch.setattr(time, "time", lambda: real() + 86400 * next(days))
    monkeypatch.setattr(time, "time_ns", lambda: int((real() + 86400 * next(days)) * 10**9))


def registry() -> AgentRegistry:
    """Some requests of three agents, and sessions that end."""
    agents = AgentRegistry(4, window=WindowSettings(3, 2))
    for number in range(40):
        slot = agents.arrived(f"agent-{number % 3}", f"session-{number % 5}", 10)
        agents.left(slot, cached_tokens=number % 4, generated=5, replayed=number % 2)
        if number % 7 == 0:
            agents.end_session(f"session-{number % 5}")
    return agents


def test_profiles_go_by_requests(jumping: None, monkeypatch: pytest.MonkeyPatch) -> None:
    jumped = registry().summary()
    monkeypatch.undo()
    assert jumped == registry().summary()


@agent
async def program() -> list[str]:
    return [await gen(f"question {number}") for number in range(5)]


def test_budgets_and_time_limits_go_by_a_clock_that_only_runs_forward(jumping: None, tmp_path: Path) -> None:
    model = FunctionModel(lambda request: request.text.upper())
    result = run(program, model=model, budget=Budget(seconds=60), checkpoint=tmp_path / "journal")
    assert result.value == [f"QUESTION {number}" for number in range(5)]
    assert run(program, replay=tmp_path / "journal").value == result.value
