"""Running evaluations: `aevaluate` and `acompare`, and their forms for synchronous code."""

from __future__ import annotations

import asyncio
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import KW_ONLY, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from pydantic_core import PydanticSerializationError, to_jsonable_python

from hive_frontend.agents import Agent
from hive_frontend.client.contract import Client
from hive_frontend.client.http.client import as_client
from hive_frontend.errors import BranchFailed, BudgetExceeded, HiveError, NoModelError, SupervisorError
from hive_frontend.evaluation.calls import Call, Function, arguments_of, code_of, name_of
from hive_frontend.evaluation.case_file import CaseFile
from hive_frontend.evaluation.report import Case, Comparison, Evaluation, Score
from hive_frontend.operations.budget import Budget
from hive_frontend.operations.transition import Shown
from hive_frontend.runtime import synchronous
from hive_frontend.search.fingerprint import fingerprint, shown
from hive_frontend.search.run_result import RunResult
from hive_frontend.search.totals import Totals
from hive_frontend.supervisors.base import Supervisor

Dataset = Iterable[Any] | str | os.PathLike[str]
OnCase = Callable[[Case], object]

_STRIDE = 1_000_003
"""Between the seeds of repetitions: more than most datasets have items, so that no two cases share a seed."""


@dataclass(frozen=True)
class Arm:
    """One of the programs that `compare` compares, with settings of its own. None takes those of `compare`."""

    program: Function
    _: KW_ONLY
    model: Client | str | None = None
    supervisor: Supervisor | None = None
    budget: Budget | None = None
    repeat: int | None = None
    concurrency: int | None = None


async def aevaluate(
    program: Function,
    dataset: Dataset,
    scorer: Function,
    *,
    model: Client | str | None = None,
    supervisor: Supervisor | None = None,
    budget: Budget | None = None,
    repeat: int = 1,
    seed: int = 0,
    concurrency: int = 8,
    checkpoint: str | os.PathLike[str] | None = None,
    on_case: OnCase | None = None,
    on_error: Literal["record", "raise"] = "record",
) -> Evaluation:
    """Run `program` on each item of `dataset`, and score the results.

    `program` is an agent, which is searched under `supervisor` or its own, or another function, usually `async`, in
    which agents run as ordinary coroutines, or which calls `arun` itself. A dict gives each parameter the field of its
    name; any other item is the first argument. A function that is no agent also gets the seed of the case if it has a
    parameter `seed`.

    `dataset` is any iterable, or the path of a JSONL file. Without a `checkpoint` it is read as the evaluation goes on,
    so a generator can end it.

    `scorer` is called with the item and the result: a `RunResult` for an agent, else what the function returned. It
    returns True or False, a number, or a dict of several of these. It may be `async` and call models, or be an agent.

    Each item runs `repeat` times, and `concurrency` cases run at once. `budget` limits each case. The seeds of cases
    derive from `seed`, and are the same for all programs. `on_case` is called with each finished `Case`.

    An error in a case is recorded in it; `on_error="raise"` raises it instead. `checkpoint` is a file to which every
    finished case is written. If it exists, the evaluation is resumed from it, and cases with errors run again;
    `JournalError` if dataset, program, scorer, seed, supervisor or budget have changed since.
    """
    name = name_of(program)
    compared = await acompare(
        {name: Arm(program, supervisor=supervisor)},
        dataset,
        scorer,
        model=model,
        budget=budget,
        repeat=repeat,
        seed=seed,
        concurrency=concurrency,
        checkpoint=checkpoint,
        on_case=on_case,
        on_error=on_error,
    )
    return compared.arms[name]


async def acompare(
    arms: Mapping[str, Function | Arm],
    dataset: Dataset,
    scorer: Function,
    *,
    model: Client | str | None = None,
    budget: Budget | None = None,
    repeat: int = 1,
    seed: int = 0,
    concurrency: int = 8,
    checkpoint: str | os.PathLike[str] | None = None,
    on_case: OnCase | None = None,
    on_error: Literal["record", "raise"] = "record",
) -> Comparison:
    """Run several programs on the same items, and compare their scores.

    `arms` are programs by name, or `Arm`s with a program and settings of its own. They take turns, each with
    `concurrency` items, so that none has the better time of day or slows another one down. Differences are estimated
    item by item. All else is as in `evaluate`.
    """
    if on_error not in ("record", "raise"):
        raise ValueError(f"on_error must be 'record' or 'raise', not {on_error!r}")
    settings = {"model": model, "budget": budget, "repeat": repeat, "concurrency": concurrency}
    _check_counts(repeat=repeat, concurrency=concurrency)
    chosen = {
        name: _with_defaults(arm if isinstance(arm, Arm) else Arm(arm), settings)
        for name, arm in arms.items()
    }
    if not chosen:
        raise ValueError("arms is empty: name at least one program")
    async with AsyncExitStack() as stack:
        items = _items_of(dataset)
        file = None
        if checkpoint is not None:
            listed = list(items)
            items = iter(listed)
            file = stack.enter_context(CaseFile(checkpoint, _described(chosen, listed, scorer, seed)))
        judge, *clients = _clients(stack, [model, *(arm.model for arm in chosen.values())])
        models = dict(zip(chosen, clients, strict=True))
        runner = _Runner(chosen, models, scorer, judge, seed, file, on_case, on_error == "raise")
        await runner.run(items, concurrency)
    return Comparison(arms={name: Evaluation(name=name, cases=runner.cases_of(name)) for name in chosen})


evaluate = synchronous(aevaluate)
compare = synchronous(acompare)


def _with_defaults(arm: Arm, settings: Mapping[str, Any]) -> Arm:
    """Return the arm with these settings where it has none of its own."""
    if not callable(arm.program):
        raise TypeError(f"a program is an @agent or an async function, not {arm.program!r}")
    if arm.supervisor is not None and not isinstance(arm.program, Agent):
        raise TypeError(f"supervisor= is for agents: give it to arun in {name_of(arm.program)}")
    full = replace(arm, **{name: value for name, value in settings.items() if getattr(arm, name) is None})
    _check_counts(repeat=full.repeat, concurrency=full.concurrency)
    return full


def _check_counts(**counts: int | None) -> None:
    for name, count in counts.items():
        if type(count) is not int or count < 1:
            raise ValueError(f"{name} must be an integer of at least 1, not {count!r}")


def _clients(stack: AsyncExitStack, models: Iterable[Client | str | None]) -> list[Client | None]:
    """Return the clients of models. Those of URLs are closed with the stack."""
    made: dict[str, Client] = {}
    for model in models:
        if isinstance(model, str) and model not in made:
            made[model] = as_client(model)
            stack.push_async_callback(made[model].aclose)
    return [made[model] if isinstance(model, str) else model for model in models]


class _Runner:
    """Runs the cases of an evaluation that its file does not have."""

    def __init__(
        self,
        arms: Mapping[str, Arm],
        models: Mapping[str, Client | None],
        scorer: Function,
        judge: Client | None,
        seed: int,
        file: CaseFile | None,
        on_case: OnCase | None,
        raises: bool,
    ) -> None:
        self._arms = arms
        self._models = models
        self._scorer = scorer
        self._judge = judge
        self._seed = seed
        self._file = file
        self._on_case = on_case
        self._raises = raises
        self._clock = time.time() - time.monotonic()
        """Start of the monotonic clock, in seconds since 1970: the time of day may jump while cases run."""
        self._done: list[Case] = []

    def cases_of(self, arm: str) -> list[Case]:
        return sorted(
            (case for case in self._done if case.arm == arm), key=lambda case: (case.item, case.repetition)
        )

    async def run(self, items: Iterator[Any], concurrency: int) -> None:
        numbered = enumerate(items)
        if len(self._arms) == 1:
            await self._run_block(next(iter(self._arms)), numbered)
        names = list(self._arms)
        while block := list(islice(numbered, concurrency)):
            for name in names:
                await self._run_block(name, iter(block))
            # None is always the first: it would pay for what others then find in caches.
            names = [*names[1:], names[0]]

    async def _run_block(self, name: str, items: Iterator[tuple[int, Any]]) -> None:
        arm = self._arms[name]
        work = ((number, item, each) for number, item in items for each in range(arm.repeat or 1))

        async def worker() -> None:
            for number, item, repetition in work:
                await self._run_case(name, arm, number, item, repetition)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(arm.concurrency or 1):
                    group.create_task(worker())
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None

    async def _run_case(self, name: str, arm: Arm, number: int, item: Any, repetition: int) -> None:
        if self._file is not None and (known := self._file.cases.get((name, number, repetition))) is not None:
            self._done.append(known)
            return
        seed = self._seed + number + repetition * _STRIDE
        args, kwargs = arguments_of(arm.program, item, seed)
        began = time.monotonic()
        case = Case(
            arm=name,
            item=number,
            repetition=repetition,
            seed=seed,
            started=self._clock + began,
            seconds=0.0,
            usage=Totals(),
        )
        try:
            call = Call(arm.program, self._models[name], seed, arm.supervisor, arm.budget)
            result, case.usage = await call(*args, **kwargs)
            if isinstance(result, RunResult) and result.questions:
                asked = ", ".join(repr(question.text) for question in result.questions)
                raise HiveError(
                    f"the run waits for people, who are asked {asked}; resume it when they have answered"
                )
            case.value = _as_json(result.value if isinstance(result, RunResult) else result)
            case.seconds = time.monotonic() - began
            found, case.scoring = await Call(self._scorer, self._judge, seed)(item, result)
            case.scores = _scores(self._scorer, found)
        except (NoModelError, SupervisorError):
            raise  # All other cases would fail, too.
        except (Exception, BranchFailed, BudgetExceeded) as error:
            if self._raises:
                raise
            case.error = f"{type(error).__name__}: {error}"
            case.seconds = case.seconds or time.monotonic() - began
        self._done.append(case)
        if self._file is not None:
            self._file.add(case)
        if self._on_case is not None:
            self._on_case(case)


def _items_of(dataset: Dataset) -> Iterator[Any]:
    """Yield the items of a dataset; those of a JSONL file are its lines."""
    if not isinstance(dataset, (str, os.PathLike)):
        yield from dataset
        return
    with Path(dataset).open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    yield json.loads(line)
                except ValueError as error:
                    raise ValueError(f"{dataset}:{number}: this line is not JSON: {error}") from None


def _described(arms: Mapping[str, Arm], items: list[Any], scorer: Function, seed: int) -> dict[str, Shown]:
    """Return what a resumed evaluation compares with its file."""
    found: dict[str, Shown] = {
        "the dataset": [f"{len(items)} items", fingerprint(items)],
        "the seed": shown(seed),
        **{f"{what} (scorer)": code for what, code in code_of(scorer).items()},
    }
    for name, arm in arms.items():
        supervisor = arm.supervisor or (arm.program.supervisor if isinstance(arm.program, Agent) else None)
        settings = {
            "the program": name_of(arm.program),
            "the supervisor": supervisor,
            "the budget": arm.budget,
        }
        for what, setting in settings.items():
            found[f"{what} ({name})"] = [str(setting), fingerprint(str(setting))]
        found |= {f"{what} ({name})": code for what, code in code_of(arm.program).items()}
    return found


def _as_json(value: Any) -> Any:
    try:
        return to_jsonable_python(value, fallback=repr)
    except (PydanticSerializationError, ValueError):
        return repr(value)


def _scores(scorer: Function, found: Any) -> dict[str, Score]:
    """Return the scores that a scorer gave, by name; a single one has the name of the scorer."""
    if isinstance(found, RunResult):
        found = found.value
    name = name_of(scorer)
    scores = found if isinstance(found, Mapping) else {"score" if name == "<lambda>" else name: found}
    for each in scores.values():
        if not isinstance(each, (bool, int, float)) or not math.isfinite(each):
            raise TypeError(
                f"the scorer returned {found!r}; return True or False, a number, or a dict of these"
            )
    return dict(scores)
