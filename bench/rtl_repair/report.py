"""What a run leaves behind: the JSON file and the table on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel
from rich.table import Table

from bench.report_file import HowMade
from bench.roles.rtl import HELD_OUT
from bench.rtl_repair.bugs import Bug
from bench.rtl_repair.methods import Attempt, Method
from bench.tally import Share, usage_by_agent, wilson
from hive import Usage

RANDOM = "random"
"""The method of the arm without a model, and what stands for its model."""
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
    """What a method with a model made of a bug."""

    bug: int
    """Its place among the bugs."""
    solved: bool
    patches: int


class Row(BaseModel):
    """One method with one model, or the same search by lot."""

    model: str
    method: str
    search: Method | None
    """What patches are searched for with; the random arm has a row for each. None for long sessions."""
    patches_allowed: int
    """Patches that a task may try: the budget that arms of the same search have in common."""
    tasks: int
    """Bugs; for the random arm, searches: each bug so many times."""
    solved: int
    held_out_tasks: int
    """Those about designs of which the Patcher's adapter was taught nothing."""
    held_out_solved: int
    rate: float
    rate_low: float
    rate_high: float
    """Wilson's interval of 95% around the rate. Searches by lot of the same bug are no independent tasks; theirs is
    too narrow."""
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


def row(
    model: str,
    method: str,
    search: Method | None,
    *,
    patches_allowed: int,
    solved: int,
    tasks: int,
    patches: int,
    wall_s: float,
    agents: dict[str, Usage],
    held_out_solved: int = 0,
    held_out_tasks: int = 0,
) -> Row:
    """A row of what was counted; sums are those of the agents."""
    low, high = wilson(solved, tasks)
    return Row(
        model=model,
        method=method,
        search=search,
        patches_allowed=patches_allowed,
        tasks=tasks,
        solved=solved,
        held_out_tasks=held_out_tasks,
        held_out_solved=held_out_solved,
        rate=solved / tasks if tasks else 0.0,
        rate_low=low,
        rate_high=high,
        patches=patches,
        **Usage.sum(agents.values()).model_dump(),
        wall_s=wall_s,
        agents=agents,
    )


def row_of(
    model: str, search: Method, attempts: Sequence[Attempt], bugs: Sequence[Bug], allowed: int, wall_s: float
) -> Row:
    """The row of a method's attempts; those of the random arm have no model."""
    by_lot = model == RANDOM
    unknown = [attempt for attempt in attempts if attempt.bug.design in HELD_OUT]
    result = row(
        model,
        RANDOM if by_lot else search,
        search,
        patches_allowed=allowed,
        solved=sum(attempt.solved for attempt in attempts),
        tasks=len(attempts),
        patches=sum(attempt.patches for attempt in attempts),
        wall_s=wall_s,
        # Answers drawn by lot are no requests, and have no tokens.
        agents={} if by_lot else usage_by_agent(attempt.agents for attempt in attempts),
        held_out_solved=sum(attempt.solved for attempt in unknown),
        held_out_tasks=len(unknown),
    )
    if not by_lot:
        result.by_task = [
            TaskEntry(bug=bugs.index(attempt.bug), solved=attempt.solved, patches=attempt.patches)
            for attempt in attempts
        ]
    return result


def entry_of(bug: Bug) -> BugEntry:
    """A bug as the report has it."""
    return BugEntry(
        design=bug.design,
        kind=bug.kind,
        line=bug.line,
        original=bug.original,
        mutated=bug.mutated,
        held_out=bug.design in HELD_OUT,
    )


def table(report: Report) -> Table:
    """The rows for a terminal: every search beside the same one by lot."""
    title = f"RTL repair: {len(report.bugs)} bugs, {report.model}, seed {report.seed}"
    result = Table(title=title, title_justify="left")
    result.add_column("method")
    result.add_column("model")
    for heading in (
        "patches",
        "repaired",
        "held out",
        "rate",
        "95%",
        "requests",
        "tokens",
        "replayed",
        "time",
    ):
        result.add_column(heading, justify="right")
    for entry in report.rows:
        by_lot = entry.model == RANDOM
        tokens = entry.tokens_generated + entry.tokens_replayed
        result.add_row(
            f"random ({entry.search})" if by_lot else entry.method,
            "-" if by_lot else entry.model,
            f"{entry.patches_allowed}",
            f"{entry.solved}/{entry.tasks}",
            f"{entry.held_out_solved}/{entry.held_out_tasks}",
            f"{entry.rate:.0%}",
            f"{entry.rate_low:.0%}-{entry.rate_high:.0%}",
            "-" if by_lot else f"{entry.requests:,}",
            "-" if by_lot else f"{tokens:,}",
            "-" if by_lot else f"{entry.tokens_replayed:,}",
            f"{entry.wall_s:.0f} s",
            style="dim" if by_lot else None,
        )
    result.caption = (
        "random: the same search, every patch by lot; its tasks are searches, several of each bug; "
        "held out: of designs that the Patcher's adapter was taught nothing about"
    )
    return result


def shares(report: Report) -> list[Share]:
    """What everybody repairs, by search; long sessions are no search."""
    return [
        Share(
            row.search, "by lot" if row.model == RANDOM else row.model, row.rate, row.rate_low, row.rate_high
        )
        for row in report.rows
        if row.search is not None
    ]
