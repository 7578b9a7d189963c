"""What a run leaves behind: the JSON file and the table on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel
from rich.table import Table

from bench.harness import tables
from bench.harness.command import HowMade
from bench.harness.statistics import Share, share_of, total
from bench.rtl_repair.methods import Method
from bench.training.rtl import HELD_OUT
from examples.rtl_repair.bugs import Bug
from hive import Estimate, Evaluation, Usage

RANDOM = "random"
"""The method of the random baseline, and what stands for its model."""
SESSION = "session"
"""The method of long sessions that keep going, bug after bug."""


class BugEntry(BaseModel):
    """A bug that was to be repaired."""

    design: str
    kind: str
    line: int
    original: str
    mutated: str
    held_out: bool
    """Whether the Patcher's adapter was taught nothing about the design; else about other bugs of it, and in long
    sessions perhaps about this one."""


class TaskEntry(BaseModel):
    """The outcome of a method on a bug."""

    bug: int
    """Its place among the bugs."""
    solved: bool
    patches: int


class Row(BaseModel):
    """One method with one model, or the same search with random patches."""

    model: str
    method: str
    search: Method | None
    """What patches are searched for with; the random baseline has a row for each. None for long sessions."""
    patches_allowed: int
    """Patches that a task may try: the budget that arms of the same search have in common."""
    tasks: int
    """Bugs; for the random baseline, searches: each bug so many times."""
    solved: int
    held_out_tasks: int = 0
    """Those about designs of which the Patcher's adapter was taught nothing."""
    held_out_solved: int = 0
    rate: float
    rate_low: float
    rate_high: float
    """Wilson's interval of 95% around the rate. Random searches of the same bug are not independent, and count as
    fewer; reports before November 2026 count them all, so their intervals are too narrow."""
    patches: int
    """Patches that were simulated."""
    requests: int
    tokens_generated: int
    """Tokens that the model computed."""
    tokens_replayed: int
    """Tokens that the server's Logits Cache served instead."""
    wall_s: float
    agents: dict[str, Usage]
    by_task: list[TaskEntry] = []


class Report(HowMade):
    """The JSON file."""

    model: str
    seed: int
    sessions: int
    """Bugs under repair at once."""
    lookups: int
    """Looks at things before each patch, at the most."""
    left_out: int
    """Bugs for which there was no time."""
    bugs: list[BugEntry]
    rows: list[Row]


def row(model: str, *, rate: Estimate, agents: dict[str, Usage], **fields: Any) -> Row:
    """A row of what was counted, with the rest of its ``fields``; sums are those of the agents."""
    rates = {"rate": rate.value, "rate_low": rate.low, "rate_high": rate.high}
    used = Usage.sum(agents.values()).model_dump()
    return Row(model=model, agents=agents, **rates, **used, **fields)


def row_of(model: str, search: Method, tried: Evaluation, bugs: Sequence[Bug], allowed: int) -> Row:
    """The row of a method's searches; those of the random baseline have no model."""
    is_random = model == RANDOM
    unknown = [case for case in tried.cases if bugs[case.item].design in HELD_OUT]
    return row(
        model,
        method=RANDOM if is_random else search,
        search=search,
        patches_allowed=allowed,
        solved=total(tried.cases, "solved"),
        tasks=len(tried.cases),
        rate=share_of(tried, "solved"),
        patches=total(tried.cases, "patches"),
        wall_s=tried.totals.wall_s,
        # Random answers are no requests, and have no tokens.
        agents={} if is_random else tried.totals.agents,
        held_out_solved=total(unknown, "solved"),
        held_out_tasks=len(unknown),
        by_task=[
            TaskEntry(bug=case.item, solved=bool(case.scores["solved"]), patches=int(case.scores["patches"]))
            for case in tried.cases
            if not is_random
        ],
    )


def entry_of(bug: Bug) -> BugEntry:
    """A bug as the report has it."""
    fields = {name: getattr(bug, name) for name in ("design", "kind", "line", "original", "mutated")}
    return BugEntry(**fields, held_out=bug.design in HELD_OUT)


def table(report: Report) -> Table:
    """The rows for a terminal: every search beside the same one with random patches."""
    headings = (
        *("method", "model", "patches", "repaired", "held out", "rate"),
        *("95%", "requests", "tokens", "replayed", "time"),
    )
    cells = []
    for row in report.rows:
        is_random = row.model == RANDOM
        cells.append(
            (
                *((f"random ({row.search})", "-") if is_random else (row.method, row.model)),
                *(f"{row.patches_allowed}", f"{row.solved}/{row.tasks}"),
                *(f"{row.held_out_solved}/{row.held_out_tasks}", f"{row.rate:.0%}"),
                f"{row.rate_low:.0%}-{row.rate_high:.0%}",
                *tables.usage_cells(row, is_random=is_random),
                f"{row.wall_s:.0f} s",
            )
        )
    caption = (
        "random: the same search with random patches; its tasks are searches, several of each bug; "
        "held out: of designs that the Patcher's adapter was taught nothing about"
    )
    title = f"RTL repair: {len(report.bugs)} bugs, {report.model}, seed {report.seed}"
    return tables.table(title, headings, cells, left=2, dim="random (", caption=caption)


def shares(report: Report) -> list[Share]:
    """What each player repairs, by search; long sessions are no search."""
    return [
        Share(row.search, row.model, row.rate, row.rate_low, row.rate_high)
        for row in report.rows
        if row.search is not None
    ]
