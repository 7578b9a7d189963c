"""The bench of the frontend: its arms do the same, and its report says what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("langgraph", reason="needs langgraph (it comes with hive[bench])")

from hive_frontend.testing import FunctionModel

from bench.frontend import __main__ as bench
from bench.frontend import comparison, workload
from bench.frontend.arms import searches
from bench.frontend.comparison import ARM_NAMES, Comparison, Unequal, observed
from bench.frontend.report import Report, Spread


@pytest.mark.parametrize("suspends", [False, True])
async def test_all_arms_make_the_same_requests_and_find_the_same(suspends: bool) -> None:
    model = workload.model(suspends=suspends)
    arms = searches(model)
    assert set(arms) == set(ARM_NAMES)
    found, calls = await observed(arms["hive"], model, 5)
    assert len(calls) == len({(call.state, call.sample) for call in calls}) == workload.CALLS == 52
    assert len({call.seed for call in calls}) == workload.CALLS / workload.BRANCHING
    assert len(found) == workload.BREADTH * workload.BRANCHING
    assert found == sorted(found, key=lambda each: -each.score)
    for name in ARM_NAMES[1:]:
        assert await observed(arms[name], model, 5) == (found, calls), name


async def test_arms_that_differ_are_not_compared() -> None:
    async def hasty(seed: int) -> list[workload.Found]:
        return []

    different = Comparison(suspends=False)
    await different.warm_up()
    different._searches["asyncio"] = hasty
    with pytest.raises(Unequal, match="asyncio makes other requests"):
        await different.warm_up()


def test_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "QUICK_REPEATS", 1)
    monkeypatch.setattr(comparison, "BLOCK_S", 0.01)
    bench.main(["--json", str(tmp_path / "deep" / "report.json"), "--quick"])
    text = (tmp_path / "deep" / "report.json").read_text()
    report = Report.model_validate_json(text)
    keys = ("transitions_per_s", "fork_us", "langgraph_ratio", "asyncio_ratio", "asyncio_ratio_suspending")
    keys += ("raw_ms", "aiohttp_ms", "client_ms_per_call", "client_ms_per_new_prompt", "client_raw_ratio")
    for key in keys:
        assert json.loads(text)[key] == report.spread[key].median > 0
    assert {arm.name for arm in report.arms} == set(ARM_NAMES)
    assert len(report.arms) == 2 * len(ARM_NAMES)
    assert report.client_ms_per_merged_call < report.client_ms_per_call
    assert report.client_ms_per_listed_call < report.client_ms_per_new_prompt
    assert report.memory.states == 10_000
    assert report.command == "python -m bench.frontend --json report.json --quick"
    assert str(tmp_path) not in text
    # What does not depend on how busy the machine is.
    assert 500 < report.bytes_per_state < 8 * 1024
    assert report.memory.data_bytes > 8 * 64 * 8
    assert "LangGraph's time over Hive's" in capsys.readouterr().out


def test_a_spread() -> None:
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(median=2, lowest=1, highest=3, repeats=3)


async def test_the_model_that_suspends_is_never_asked_for_an_answer_at_once() -> None:
    at_once, later = workload.model(suspends=False), workload.model(suspends=True)
    (request, *_) = workload.requests("x", workload.ROOT, 1, "s")
    assert isinstance(at_once, FunctionModel)
    assert later.answer_now(request) is None
    assert at_once.answer_now(request) == await later.complete(request)
