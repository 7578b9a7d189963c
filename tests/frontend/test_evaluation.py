"""Evaluations: what runs, what is scored, what a file keeps, and what intervals say."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from hive_frontend import (
    Arm,
    BestOfN,
    Budget,
    Case,
    Comparison,
    Evaluation,
    JournalError,
    ModelError,
    NoModelError,
    Prices,
    Request,
    RunResult,
    aevaluate,
    agent,
    arun,
    compare,
    evaluate,
    fail,
    gen,
    score,
)
from hive_frontend.evaluation.estimates import mean, share, share_difference
from hive_frontend.testing import FunctionModel
from hypothesis import given
from hypothesis import strategies as st


@agent
async def guess(low: int, high: int = 9) -> int:
    digit = int(await gen(f"A number from {low} to {high}:", name="digit", regex="[0-9]"))
    if not low <= digit <= high:
        fail("out of range")
    score(digit)
    return digit


def digits(request: Request) -> str:
    return random.Random(f"{request.seed} {request.sample}").choice("0123456789")


def above(item: Any, result: RunResult[int]) -> bool:
    return result.value is not None and result.value > item["than"]


ITEMS = [{"low": low, "than": 4} for low in range(8)]


def test_an_agent_is_scored_on_every_item() -> None:
    model = FunctionModel(digits)
    report = evaluate(guess, ITEMS, above, model=model, seed=3)
    assert [case.item for case in report.cases] == list(range(8))
    assert [case.seed for case in report.cases] == list(range(3, 11))
    assert {case.arm for case in report.cases} == {"guess"}
    expected = [case.value is not None and case.value > 4 for case in report.cases]
    assert [case.scores for case in report.cases] == [{"above": each} for each in expected]
    assert report.scores["above"].value == fmean(expected)
    assert (report.totals.requests, report.totals.agents["guess"].requests, report.errors) == (8, 8, 0)
    # Only the fields that are parameters reach the program.
    assert model.calls[0].text == "A number from 0 to 9:"
    again = evaluate(guess, ITEMS, above, model=FunctionModel(digits), seed=3, concurrency=1)
    assert [case.value for case in again.cases] == [case.value for case in report.cases]


def test_a_supervisor_and_repetitions() -> None:
    report = evaluate(guess, ITEMS, above, model=FunctionModel(digits), supervisor=BestOfN(4), repeat=3)
    assert [(case.item, case.repetition) for case in report.cases] == [
        (i, r) for i in range(8) for r in range(3)
    ]
    assert len({case.seed for case in report.cases}) == 24
    assert {case.usage.requests for case in report.cases} == {4}
    assert report.scores["above"].items == 8
    once = evaluate(guess, ITEMS, above, model=FunctionModel(digits), repeat=3)
    assert report.scores["above"].value > once.scores["above"].value


def test_a_budget_bounds_each_case() -> None:
    report = evaluate(
        guess, ITEMS, above, model=FunctionModel(digits), supervisor=BestOfN(4), budget=Budget(calls=2)
    )
    assert {case.usage.requests for case in report.cases} == {2}


def test_programs_may_be_functions() -> None:
    async def in_session(low: int, than: int) -> int:
        return await guess(low) + await guess(low, 9) - than

    async def runs(item: dict[str, int], seed: int) -> RunResult[int]:
        return await arun(guess, item["low"], model=FunctionModel(digits), seed=seed)

    def number(item: Any, result: int) -> int:
        return result

    easy = [{"low": 0, "than": 4}]
    report = evaluate(in_session, easy, number, model=FunctionModel(digits))
    assert (report.totals.requests, report.scores["number"].value) == (2, report.cases[0].value)
    ran = evaluate(lambda item, seed: runs(item, seed), [(0,)], above, on_error="record")
    assert ran.cases[0].error is not None
    assert "TypeError" in ran.cases[0].error

    async def runs_itself(item: dict[str, int], seed: int) -> RunResult[int]:
        return await runs(item, seed)

    wrapped = evaluate(lambda low, than, seed: runs_itself({"low": low}, seed), easy, above, seed=7)
    assert wrapped.totals.agents["guess"].requests == 1
    assert (
        wrapped.cases[0].value
        == evaluate(guess, easy, above, model=FunctionModel(digits), seed=7).cases[0].value
    )


def test_scorers_may_call_models() -> None:
    @agent
    async def judge(item: Any, result: RunResult[int]) -> float:
        return float(await gen(f"Rate {result.value}", regex="[0-9]"))

    async def asks(item: Any, result: RunResult[int]) -> dict[str, float]:
        return {"rate": float(await gen(f"Rate {result.value}", regex="[0-9]")), "twice": 2.0}

    for scorer, name in ((judge, "judge"), (asks, "rate")):
        report = evaluate(guess, ITEMS[:2], scorer, model=FunctionModel(digits))
        assert report.scores[name].is_share is False
        assert [case.scoring.requests for case in report.cases] == [1, 1]
        assert report.totals.requests == 2, "judging is not the program's doing"


def test_a_judge_may_be_a_search() -> None:
    @agent(supervisor=BestOfN(3, at="rate"))
    async def judge(item: Any, result: RunResult[int]) -> int:
        rate = int(await gen(f"Rate {result.value}", name="rate", regex="[0-9]"))
        score(rate)
        return rate * len(result.results)

    report = evaluate(guess, ITEMS[:2], judge, model=FunctionModel(digits), on_error="raise")
    assert [case.scoring.requests for case in report.cases] == [3, 3]


def test_errors_belong_to_their_case() -> None:
    def breaks(request: Request) -> str:
        if "from 3" in request.text:
            raise ModelError("the server refused", status=400)
        return "9"

    def picky(item: Any, result: RunResult[int]) -> bool:
        return bool({0: True, 1: True, 2: False}[item["low"]])

    report = evaluate(guess, ITEMS[:5], picky, model=FunctionModel(breaks))
    assert [case.error for case in report.cases] == [
        None, None, None, "ModelError: the server refused", "KeyError: 4"
    ]  # fmt: skip
    # An error is no success.
    assert (report.scores["picky"].value, report.scores["picky"].items, report.errors) == (0.4, 5, 2)
    assert "guess, item 3: ModelError: the server refused" in str(report)
    with pytest.raises(ModelError, match="refused"):
        evaluate(guess, ITEMS[:5], picky, model=FunctionModel(breaks), on_error="raise")
    numbers = evaluate(
        guess, ITEMS[2:5], lambda item, result: result.value / (item["low"] - 4), model=FunctionModel(breaks)
    )
    assert (numbers.scores["score"].value, numbers.scores["score"].items, numbers.errors) == (-4.5, 1, 2)


@pytest.mark.parametrize(
    ("settings", "error", "sentence"),
    [
        ({"model": None}, NoModelError, "agent 'guess' needs a model"),
        ({"program": 3}, TypeError, "a program is an @agent or an async function, not 3"),
        ({"dataset": [{"high": 3}]}, TypeError, "guess has a parameter 'low', and an item has no such field"),
        ({"repeat": 0}, ValueError, "repeat must be an integer of at least 1, not 0"),
        ({"concurrency": True}, ValueError, "concurrency must be an integer of at least 1, not True"),
        ({"on_error": "ignore"}, ValueError, "on_error must be 'record' or 'raise', not 'ignore'"),
        (
            {"program": above, "supervisor": BestOfN(2)},
            TypeError,
            "supervisor= is for agents: give it to arun",
        ),
    ],
)
def test_wrong_settings_end_an_evaluation(
    settings: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    given: dict[str, Any] = {
        "program": guess,
        "dataset": ITEMS,
        "scorer": above,
        "model": FunctionModel(digits),
    }
    given |= settings
    with pytest.raises(error, match=re.escape(sentence)):
        evaluate(**given)


def test_a_scorer_that_returns_a_text_is_told_so() -> None:
    report = evaluate(guess, ITEMS[:1], lambda item, result: "good", model=FunctionModel(digits))
    assert report.cases[0].error == (
        "TypeError: the scorer returned 'good'; return True or False, a number, or a dict of these"
    )


def test_a_dataset_may_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "items.jsonl"
    path.write_text("".join(f"{json.dumps(item)}\n" for item in ITEMS) + "\n")
    report = evaluate(guess, path, above, model=FunctionModel(digits))
    assert len(report.cases) == len(ITEMS)
    path.write_text('{"low": 1, "than": 4}\n{"low":\n')
    with pytest.raises(ValueError, match=r"items.jsonl:2: this line is not JSON"):
        evaluate(guess, str(path), above, model=FunctionModel(digits))


async def test_only_so_many_cases_run_at_once_and_a_generator_ends_the_evaluation() -> None:
    running = most = 0
    read: list[int] = []

    def items() -> Iterator[int]:
        for number in range(10):
            read.append(number)
            yield number

    async def program(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        assert len(read) <= number + 3, "items are read when there is room for them"
        await asyncio.sleep(0.001)
        running -= 1
        return number

    seen: list[Case] = []
    report = await aevaluate(
        program,
        items(),
        lambda item, number: item == number,
        concurrency=3,
        on_case=seen.append,
        on_error="raise",
    )
    assert (most, report.scores["score"].value, len(seen)) == (3, 1.0, 10)


# Files


class Killed(BaseException):
    """What a program cannot catch."""


def test_a_killed_evaluation_is_resumed(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    calls: list[str] = []

    def counts(request: Request) -> str:
        calls.append(request.text)
        if len(calls) == 5:
            raise Killed
        return digits(request)

    settings: dict[str, Any] = {"checkpoint": path, "repeat": 2, "concurrency": 1}
    with pytest.raises(Killed):
        evaluate(guess, ITEMS, above, model=FunctionModel(counts), **settings)
    with path.open("a") as file:
        file.write('{"arm": "gue')  # a line that was being written
    report = evaluate(guess, ITEMS, above, model=FunctionModel(counts), **settings)
    whole = evaluate(guess, ITEMS, above, model=FunctionModel(digits), repeat=2)
    assert len(calls) == 17
    assert [case.value for case in report.cases] == [case.value for case in whole.cases]
    assert report.scores == whole.scores
    assert evaluate(guess, ITEMS, above, model=FunctionModel(counts), **settings).scores == whole.scores
    assert len(calls) == 17
    assert len(path.read_text().splitlines()) == 17
    # More repetitions are more cases of the same evaluation.
    settings["repeat"] = 3
    assert len(evaluate(guess, ITEMS, above, model=FunctionModel(counts), **settings).cases) == 24
    assert len(calls) == 25


def test_cases_with_errors_run_again(tmp_path: Path) -> None:
    def down(request: Request) -> str:
        raise ModelError("the server is down")

    path = tmp_path / "deep" / "cases.jsonl"
    assert evaluate(guess, ITEMS, above, model=FunctionModel(down), checkpoint=path).errors == 8
    for _ in range(2):
        report = evaluate(guess, ITEMS, above, model=FunctionModel(digits), checkpoint=path)
        assert (report.errors, len(report.cases)) == (0, 8)


def other(item: Any, result: RunResult[int]) -> bool:
    return result.value == item["than"]


@agent(name="guess")
async def guess_again(low: int, high: int = 9) -> int:
    return int(await gen(f"Guess from {low} to {high}:", name="digit", regex="[0-9]"))


guess_again.__name__ = "guess"


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"dataset": ITEMS[1:]}, "the dataset was 8 items, and is 7 items"),
        ({"dataset": [*ITEMS[1:], ITEMS[0]]}, "the dataset changed, within 8 items"),
        ({"seed": 1}, "the seed was 0, and is 1"),
        ({"supervisor": BestOfN(2)}, "the supervisor (guess) was Once(), and is BestOfN(n=2)"),
        ({"budget": Budget(calls=1)}, "the budget (guess) was None, and is Budget(tokens=None, calls=1"),
        ({"scorer": other}, "the code of above (scorer) was there"),
        ({"program": guess_again}, "the code of guess (guess) was there"),
    ],
)
def test_another_evaluation_is_refused(changed: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    evaluate(guess, ITEMS, above, model=FunctionModel(digits), checkpoint=path)
    settings: dict[str, Any] = {"program": guess, "dataset": ITEMS, "scorer": above, **changed}
    with pytest.raises(JournalError, match=re.escape(sentence)):
        evaluate(model=FunctionModel(digits), checkpoint=path, **settings)


@pytest.mark.parametrize("text", ["not JSON\n", '{"hive_journal": 2}\n', '{"hive_evaluation": 9}\n', "[]\n"])
def test_a_file_of_something_else_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_text(text)
    with pytest.raises(JournalError, match=r"give (a|another) file"):
        evaluate(guess, ITEMS, above, model=FunctionModel(digits), checkpoint=path)
    assert path.read_text() == text


# Comparisons


def test_arms_take_turns_on_the_same_items() -> None:
    seen: list[tuple[str, int]] = []
    model = FunctionModel(digits)
    priced = FunctionModel(lambda request: Prices(prompt=0, output=1e6).charge(digits_of(request)))
    report = compare(
        {
            "once": guess,
            "four": Arm(guess, supervisor=BestOfN(4), repeat=2),
            "dear": Arm(guess, model=priced),
        },
        ITEMS,
        above,
        model=model,
        concurrency=4,
        on_case=lambda case: seen.append((case.arm, case.item)),
    )
    blocks = [arm for number, (arm, _) in enumerate(seen) if number == 0 or seen[number - 1][0] != arm]
    assert blocks == ["once", "four", "dear", "four", "dear", "once"]
    assert [len(arm.cases) for arm in report.arms.values()] == [8, 16, 8]
    assert {case.item: case.seed for case in report.arms["once"].cases} == dict(enumerate(range(8)))
    assert report.arms["dear"].totals.cost == 8.0
    difference = report.difference("four", "once")
    assert difference.value == pytest.approx(
        report.arms["four"].scores["above"].value - report.arms["once"].scores["above"].value
    )
    assert difference.low is not None
    assert difference.high is not None
    assert difference.low <= difference.value <= difference.high
    assert report.difference("once", "four").value == -difference.value
    text = str(report).splitlines()
    assert [line.split("  ")[0] for line in text] == [
        "",
        "once",
        "four",
        "dear",
        "four - once",
        "dear - once",
    ]
    assert "cost" in text[0]
    assert report._repr_html_().count("<tr>") == 6
    loaded = Comparison.model_validate_json(report.model_dump_json())
    assert loaded.model_dump() == report.model_dump()
    assert json.loads(report.model_dump_json())["differences"]["four"]["above"]["value"] == difference.value
    with pytest.raises(ValueError, match="there is no arm 'two'; there are 'once', 'four', 'dear'"):
        report.difference("two", "once")
    with pytest.raises(ValueError, match="there is no score 'below'; there are 'above'"):
        report.difference("four", "once", "below")


def digits_of(request: Request) -> Any:
    from hive_frontend import Completion

    return Completion(digits(request), 1)


def test_a_report_of_nothing() -> None:
    report = evaluate(guess, [], above, model=FunctionModel(digits))
    assert (report.scores, report.totals.wall_s, report.errors) == ({}, 0.0, 0)
    assert Evaluation.model_validate_json(report.model_dump_json()).cases == []
    with pytest.raises(ValueError, match="arms is empty"):
        compare({}, ITEMS, above)


# Intervals


@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=30))
def test_repetitions_narrow_an_interval_less_than_items_do(outcomes: list[list[bool]]) -> None:
    found = share(outcomes)
    flat = share([[each] for item in outcomes for each in item])
    assert found.low is not None
    assert found.high is not None
    assert flat.low is not None
    assert flat.high is not None
    assert 0 <= found.low <= found.value <= found.high <= 1
    assert found.value == pytest.approx(flat.value)
    assert found.high - found.low >= flat.high - flat.low - 1e-9
    # All repetitions agree: they tell nothing new.
    firsts = [[item[0]] for item in outcomes]
    same = share([item * 3 for item in firsts])
    once = share(firsts)
    assert same.low is not None
    assert once.low is not None
    assert same.low == pytest.approx(once.low, abs=0.02)


@pytest.mark.parametrize(("solved", "tasks"), [(0, 0), (0, 5), (5, 5), (3, 10)])
def test_intervals_hold_the_rate(solved: int, tasks: int) -> None:
    found = share([[number < solved] for number in range(tasks)])
    assert found.low is not None
    assert found.high is not None
    assert 0 <= found.low <= (solved / tasks if tasks else 0.5) <= found.high <= 1
    assert found.high - found.low > 0.3


def test_no_interval_loses_its_rate_to_rounding() -> None:
    for tasks in range(1, 101):
        for solved in range(tasks + 1):
            found = share([[number < solved] for number in range(tasks)])
            assert found.low is not None
            assert found.high is not None
            assert 0 <= found.low <= solved / tasks <= found.high <= 1


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    rng = random.Random(1)
    held = {"share": 0, "repeated": 0, "mean": 0, "difference": 0}
    rounds = 200
    for _ in range(rounds):
        rates = [rng.betavariate(1, 1) for _ in range(40)]
        found = {
            "share": (share([[rng.random() < rate] for rate in rates]), 0.5),
            "repeated": (share([[rng.random() < rate for _ in range(8)] for rate in rates]), 0.5),
            "mean": (mean([[rng.gauss(2, 1)] for _ in range(40)]), 2.0),
            "difference": (
                share_difference([(rng.random() < rate) - (rng.random() < rate / 2) for rate in rates]),
                0.25,
            ),
        }
        for name, (estimate, truth) in found.items():
            assert estimate.low is not None
            assert estimate.high is not None
            held[name] += estimate.low <= truth <= estimate.high
    assert all(0.88 <= count / rounds <= 0.99 for count in held.values()), held


def test_agreement_on_a_few_items_proves_nothing() -> None:
    few, many = share_difference([0.0] * 5), share_difference([0.0] * 1000)
    assert few.high is not None
    assert many.high is not None
    assert few.high > 0.2
    assert 0 < many.high < 0.01
    assert mean([[1.0, 3.0]]).low is None
    assert str(mean([[1.0, 3.0]])) == "2"
