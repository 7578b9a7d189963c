"""What a run of the bench leaves behind: the JSON file and the table on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from pydantic import BaseModel
from rich.table import Table

from bench.game24.methods import Attempt, Method, Shape
from bench.report_file import HowMade
from bench.tally import Share, usage_by_agent, wilson
from hive import Usage

RANDOM = "random"
"""The method of the arm without a model, and what stands for its model."""


class TaskEntry(BaseModel):
    """What a method made of a puzzle."""

    rank: int
    solved: bool
    share: float
    """Of the searches of the puzzle, that solved it: of one, or of all those by lot."""
    proposals: int


class Row(BaseModel):
    """One method with one model, or the same search by lot."""

    model: str
    method: str
    search: Method
    """What a solution is looked for with; the random arm has a row for each."""
    proposals_allowed: int
    """Proposals for a puzzle, at the most: the budget that arms of the same search have in common."""
    tasks: int
    """Puzzles."""
    solved: int
    """Puzzles; of the random arm, those that the first search of each solved."""
    share: float
    """Of all searches, that solved their puzzle. A model has one for each puzzle, the random arm several."""
    share_low: float
    share_high: float
    """Wilson's interval of 95% around the share. Searches by lot of the same puzzle are no independent ones; theirs is
    too narrow."""
    proposals: int
    """Proposals made; like what follows, in the random arm of the first searches."""
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
    """Searches of a puzzle by lot."""
    shape: Shape
    left_out: int
    """Puzzles for which there was no time."""
    rows: list[Row]


def row_of(
    model: str, search: Method, played: Sequence[Sequence[Attempt]], *, allowed: int, wall_s: float
) -> Row:
    """The row of a method's searches: for each puzzle one, or several by lot."""
    by_lot = model == RANDOM
    outcomes = [attempt.solved for searches in played for attempt in searches]
    firsts = [searches[0] for searches in played]
    # Answers drawn by lot are no requests, and have no tokens.
    agents = {} if by_lot else usage_by_agent(attempt.agents for attempt in firsts)
    low, high = wilson(sum(outcomes), len(outcomes))
    return Row(
        model=model,
        method=RANDOM if by_lot else search,
        search=search,
        proposals_allowed=allowed,
        tasks=len(played),
        solved=sum(attempt.solved for attempt in firsts),
        share=fmean(outcomes) if outcomes else 0.0,
        share_low=low,
        share_high=high,
        proposals=sum(attempt.proposals for attempt in firsts),
        duplicates=sum(attempt.duplicates for attempt in firsts),
        **Usage.sum(agents.values()).model_dump(),
        wall_s=wall_s,
        agents=agents,
        by_task=[
            TaskEntry(
                rank=searches[0].puzzle.rank,
                solved=searches[0].solved,
                share=fmean(attempt.solved for attempt in searches),
                proposals=searches[0].proposals,
            )
            for searches in played
        ],
    )


def table(report: Report) -> Table:
    """The rows for a terminal: every search by lot behind those of the models."""
    tasks = max((row.tasks for row in report.rows), default=0)
    result = Table(title=f"Game of 24: {tasks} puzzles, seed {report.seed}", title_justify="left")
    result.add_column("method")
    result.add_column("model")
    for heading in ("budget", "solved", "share", "95%", "requests", "tokens", "replayed", "repeated", "time"):
        result.add_column(heading, justify="right")
    for entry in report.rows:
        by_lot = entry.model == RANDOM
        tokens = entry.tokens_generated + entry.tokens_replayed
        result.add_row(
            f"random ({entry.search})" if by_lot else entry.method,
            "-" if by_lot else entry.model,
            f"{entry.proposals_allowed}",
            f"{entry.solved}/{entry.tasks}",
            f"{entry.share:.1%}" if by_lot else f"{entry.share:.0%}",
            f"{entry.share_low:.0%}-{entry.share_high:.0%}",
            "-" if by_lot else f"{entry.requests:,}",
            "-" if by_lot else f"{tokens:,}",
            "-" if by_lot else f"{entry.tokens_replayed:,}",
            f"{entry.duplicates:,}",
            f"{entry.wall_s:.0f} s",
            style="dim" if by_lot else None,
        )
    result.caption = (
        "budget: proposals for a puzzle; repeated: proposals that a search had before for the same position; "
        f"random: the same search, every answer by lot; its share is that of {report.lots} searches per puzzle"
    )
    return result


def shares(report: Report) -> list[Share]:
    """What everybody solves, by search."""
    return [
        Share(
            row.search,
            "by lot" if row.model == RANDOM else row.model,
            row.share,
            row.share_low,
            row.share_high,
        )
        for row in report.rows
    ]
