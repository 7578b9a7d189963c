"""What a run of the bench leaves behind: the JSON file and the table on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from pydantic import BaseModel
from rich.table import Table

from bench.game24.methods import Method, Shape
from bench.harness import tables
from bench.harness.command import HowMade
from bench.harness.statistics import Share, share_of, total
from examples.game24.puzzles import Puzzle
from hive import Evaluation, Usage

RANDOM = "random"
"""The method of the random baseline, and what stands for its model."""


class TaskEntry(BaseModel):
    """The outcome of a method on a puzzle."""

    rank: int
    solved: bool
    share: float
    """Of the searches of the puzzle, that solved it: of one, or of all random ones."""
    proposals: int


class Row(BaseModel):
    """One method with one model, or the same search with random answers."""

    model: str
    method: str
    search: Method
    """What a solution is looked for with; the random baseline has a row for each."""
    proposals_allowed: int
    """Proposals for a puzzle, at the most: the budget that arms of the same search have in common."""
    tasks: int
    """Puzzles."""
    solved: int
    """Puzzles; of the random baseline, those that the first search of each solved."""
    share: float
    """Of all searches, that solved their puzzle. A model has one for each puzzle, the random baseline several."""
    share_low: float
    share_high: float
    """Wilson's interval of 95% around the share. Random searches of the same puzzle are not independent, and count as
    fewer; reports before November 2026 count them all, so their intervals are too narrow."""
    proposals: int
    """Proposals made; like what follows, in the random baseline of the first searches."""
    duplicates: int
    """Proposals that a search had before for the same position."""
    requests: int
    tokens_generated: int
    """Tokens that the model computed."""
    tokens_replayed: int
    """Tokens that the server's Logits Cache served instead."""
    wall_s: float
    """Of all searches."""
    agents: dict[str, Usage]
    by_task: list[TaskEntry]


class Report(HowMade):
    """The JSON file."""

    model: str
    seed: int
    concurrency: int
    """Puzzles at once."""
    lots: int
    """Random searches of a puzzle."""
    shape: Shape
    left_out: int
    """Puzzles for which there was no time."""
    rows: list[Row]


def row_of(model: str, search: Method, played: Evaluation, puzzles: Sequence[Puzzle], *, allowed: int) -> Row:
    """The row of a method's searches: for each puzzle one, or several random ones."""
    is_random = model == RANDOM
    firsts = [case for case in played.cases if case.repetition == 0]
    # Random answers are no requests, and have no tokens.
    agents = {} if is_random else played.totals.agents
    found = share_of(played, "solved")
    return Row(
        model=model,
        method=RANDOM if is_random else search,
        search=search,
        proposals_allowed=allowed,
        tasks=len(firsts),
        solved=total(firsts, "solved"),
        share=found.value,
        share_low=found.low,
        share_high=found.high,
        proposals=total(firsts, "proposals"),
        duplicates=total(firsts, "duplicates"),
        **Usage.sum(agents.values()).model_dump(),
        wall_s=played.totals.wall_s,
        agents=agents,
        by_task=[
            TaskEntry(
                rank=puzzles[first.item].rank,
                solved=bool(first.scores["solved"]),
                share=fmean(case.scores["solved"] for case in played.cases if case.item == first.item),
                proposals=int(first.scores["proposals"]),
            )
            for first in firsts
        ],
    )


def table(report: Report) -> Table:
    """The rows for a terminal: random searches behind those of the models."""
    headings = (
        *("method", "model", "budget", "solved", "share", "95%"),
        *("requests", "tokens", "replayed", "repeated", "time"),
    )
    cells = []
    for row in report.rows:
        is_random = row.model == RANDOM
        cells.append(
            (
                *((f"random ({row.search})", "-") if is_random else (row.method, row.model)),
                *(f"{row.proposals_allowed}", f"{row.solved}/{row.tasks}"),
                f"{row.share:.1%}" if is_random else f"{row.share:.0%}",
                f"{row.share_low:.0%}-{row.share_high:.0%}",
                *tables.usage_cells(row, is_random=is_random),
                *(f"{row.duplicates:,}", f"{row.wall_s:.0f} s"),
            )
        )
    caption = (
        "budget: proposals for a puzzle; repeated: proposals that a search had before for the same position; "
        f"random: the same search with random answers; its share is that of {report.lots} searches per puzzle"
    )
    tasks = max((row.tasks for row in report.rows), default=0)
    title = f"Game of 24: {tasks} puzzles, seed {report.seed}"
    return tables.table(title, headings, cells, left=2, dim="random (", caption=caption)


def shares(report: Report) -> list[Share]:
    """What each player solves, by search."""
    return [Share(row.search, row.model, row.share, row.share_low, row.share_high) for row in report.rows]
