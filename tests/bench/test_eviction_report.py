"""The report of the eviction bench: its rows and goals by hand, and the command as a whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.eviction import __main__ as bench
from bench.eviction.outcome import Outcome
from bench.eviction.policies import CLAIRVOYANT
from bench.eviction.report import Report, gap_closed, goals_of, rows_of
from bench.eviction.scenarios import SCENARIOS, Replayed, recorded
from bench.eviction.workload import Generator, Rtl, traced
from bench.traces.recording import save_trace


def replayed(scenario: str, pool: int, policy: str, seed: int, prefill: int) -> Replayed:
    """A replay of 1000 prompt tokens of Patcher and 100 of Summary, who finds nothing."""
    outcome = Outcome(evicted_tokens=7, evict_calls=2)
    outcome.count("Patcher", 1000, 1100 - prefill)
    outcome.count("Summary", 100, 0)
    return Replayed(scenario, pool, policy, seed, outcome)


def results(scenario: str, pool: int, **prefill: tuple[int, ...]) -> list[Replayed]:
    return [
        replayed(scenario, pool, policy, seed, tokens)
        for policy, by_seed in prefill.items()
        for seed, tokens in enumerate(by_seed)
    ]


def test_a_gap_is_closed_by_what_is_saved_of_it() -> None:
    assert gap_closed(100, 60, 50) == 0.8
    assert gap_closed(100, 110, 50) == -0.2
    assert gap_closed(100, 99, 99.5) is None


def test_rows_are_means_over_seeds() -> None:
    rows = rows_of(
        [SCENARIOS["B"]],
        results("B", 34_000, lru=(500, 700), density=(350, 550), clairvoyant=(300, 300))
        + results("B", 12_000, lru=(900,), density=(900,), clairvoyant=(900,)),
    )
    assert [(row.pool, row.policy) for row in rows] == [
        (pool, policy) for pool in (12_000, 34_000) for policy in ("lru", "density", CLAIRVOYANT)
    ]
    density = rows[4]
    assert density.gap_closed == (600 - 450) / (600 - 300)
    assert density.gap_closed_by_seed == [150 / 200, 150 / 400]
    assert density.prefill_tokens == 450
    assert density.hot_hit == 0.65
    assert density.cold_hit == 0
    assert (density.evicted_tokens, density.evict_calls, density.seeds) == (7, 2, 2)
    assert [row.gap_closed for row in rows[:3]] == [None, None, None]


def test_goals_are_about_the_worst_row_of_density() -> None:
    scenarios = [SCENARIOS[name] for name in ("B", "C", "chat")]
    found = [
        *results("B", 34_000, lru=(600,), density=(330,), clairvoyant=(300,)),
        *results("C", 24_000, lru=(600,), density=(450,), clairvoyant=(300,)),
        *results("chat", 12_000, lru=(600,), density=(603,), clairvoyant=(300,)),
        *results("chat", 20_000, lru=(500,), density=(520,), clairvoyant=(300,)),
    ]
    large, least, chat = goals_of(rows_of(scenarios, found), scenarios)
    assert (large.value, large.where, large.met) == (0.9, "B, 34,000", True)
    assert (least.value, least.where, least.met) == (0.5, "C, 24,000", False)
    assert (chat.value, chat.where, chat.met) == (1.04, "chat, 20,000", False)
    assert goals_of(rows_of(scenarios[:1], results("B", 34_000, lru=(5,), clairvoyant=(3,))), scenarios) == []


def test_a_recorded_trace_is_a_scenario(tmp_path: Path) -> None:
    path = tmp_path / "short.json.xz"
    trace = traced(Rtl(slots=2, rounds=2).slots_of(Generator(0)))
    save_trace(trace, path)
    scenario = recorded(path)
    assert scenario.name == "rtl-short"
    assert scenario.recorded
    assert scenario.trace(0) == replace(trace, times=None)
    longest = max(len(request.prompt) + len(request.output) for request in trace.requests)
    assert list(scenario.pools) == sorted(set(scenario.pools))
    assert min(scenario.pools) > longest
    assert all(pool % 100 == 0 for pool in scenario.pools)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib (it comes with hive[bench])")
    path = tmp_path / "short.json.xz"
    save_trace(traced(Rtl(slots=2, rounds=2).slots_of(Generator(0))), path)
    file = tmp_path / "deep" / "report.json"
    options = ["--quick", "--only", "P2", "rtl", "--recording", str(path), "--policies", "density", "paper"]
    bench.main(["--json", str(file), *options])
    report = Report.model_validate_json(file.read_text())
    assert report.command == (
        "python -m bench.eviction --json report.json --quick --only P2 rtl --recording short.json.xz "
        "--policies density paper"
    )
    assert {row.policy for row in report.rows} == {"lru", "density", "paper", CLAIRVOYANT}
    assert {(row.scenario, row.seeds) for row in report.rows} == {("P2", 3), ("rtl-short", 1)}
    assert [row.gap_closed for row in report.rows if row.policy in ("lru", CLAIRVOYANT)][:2] == [0, 1]
    assert {goal.what.partition(",")[0] for goal in report.goals} == {"gap closed"}
    assert report.cost == []
    assert [plot.name for plot in file.parent.glob("*.png")] == ["report-gaps.png"]
    assert "Goals of density" in capsys.readouterr().out


@pytest.mark.parametrize("flag", ["--workers", "--seeds", "--pools"])
def test_numbers_are_positive(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.main(["--json", "unwritten.json", flag, "0"])
    assert f"argument {flag}: must be at least 1, not 0" in capsys.readouterr().err


def test_what_is_no_trace_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.json.xz"
    path.write_text("{}")
    with pytest.raises(SystemExit, match=r"bench: bad\.json\.xz is no trace"):
        bench.main(["--json", str(tmp_path / "report.json"), "--only", "rtl", "--recording", str(path)])
