"""The outcome of a set of puzzles: the model's search beside the random baseline."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from hive_frontend import RunResult, Supervisor, Totals, Usage
from pydantic import BaseModel
from rich.table import Table

from examples.by_agent import usage_by_agent
from examples.game24.puzzles import Puzzle


class Game(BaseModel):
    """The outcome of one puzzle."""

    numbers: str
    rank: int
    luck: float
    """The chance that three random steps solve it."""
    solved: bool
    steps: list[str]
    """The solution found; empty without one."""
    random_solved: bool
    """Whether the random baseline with the same seed solved it."""
    random_share: float
    """The share of all random searches that solved it."""
    totals: Totals


class Summary(BaseModel):
    """The outcome of a run, as JSON files keep it."""

    puzzles: int
    solved: int
    random_solved: int
    random_expected: float
    """How many of the puzzles a random search solves on average, estimated from `lots` searches of each."""
    requests: int
    tokens_generated: int
    """Tokens that the model computed."""
    tokens_replayed: int
    """Tokens that the server's Logits Cache served instead."""
    wall_s: float
    agents: dict[str, Usage]
    seed: int
    search: str
    """The algorithm."""
    supervisor: str
    """The algorithm with its settings, of both arms."""
    lots: int
    """Random searches for each puzzle."""
    games: list[Game]


def judge(puzzle: Puzzle, run: RunResult[list[str]], lots: Sequence[bool]) -> Game:
    """The record of one puzzle. `lots` says which random searches solved it; the first has the run's seed."""
    return Game(
        numbers=str(puzzle),
        rank=puzzle.rank,
        luck=float(puzzle.luck),
        solved=run.best is not None,
        steps=run.value or [],
        random_solved=lots[0],
        random_share=fmean(lots),
        totals=run.totals,
    )


def summarise(games: Iterable[Game], *, search: str, supervisor: Supervisor, lots: int, seed: int) -> Summary:
    """Add the games up. `wall_s` is the time of the searches: they run one after the other."""
    games = list(games)
    return Summary(
        puzzles=len(games),
        solved=sum(game.solved for game in games),
        random_solved=sum(game.random_solved for game in games),
        random_expected=sum(game.random_share for game in games),
        **Usage.sum(game.totals for game in games).model_dump(),
        wall_s=sum(game.totals.wall_s for game in games),
        agents=usage_by_agent(game.totals.agents for game in games),
        seed=seed,
        search=search,
        supervisor=repr(supervisor),
        lots=lots,
        games=games,
    )


def table(summary: Summary) -> Table:
    """The summary for a terminal: one row per arm, one per agent."""
    result = Table(title=f"Game of 24: {summary.puzzles} puzzles, seed {summary.seed}", title_justify="left")
    result.add_column("arm")
    for heading in ("solved", "requests", "tokens", "replayed", "share", "wall time"):
        result.add_column(heading, justify="right")
    wall = f"{summary.wall_s:.1f} s"
    solved = f"{summary.solved}/{summary.puzzles}"
    result.add_row(summary.search, solved, *_costs(summary), wall, style="bold")
    for name, usage in sorted(summary.agents.items()):
        result.add_row(f"  {name}", "", *_costs(usage), "", style="dim")
    result.add_row("random", f"{summary.random_solved}/{summary.puzzles}", "0", "0", "0", "-", "-")
    result.caption = (
        "random: the same search with random answers; on average it solves "
        f"{summary.random_expected:.1f} ({summary.lots} searches per puzzle)"
    )
    return result


def _costs(usage: Usage | Summary) -> tuple[str, str, str, str]:
    """Requests, all tokens, those replayed, and their share."""
    tokens = usage.tokens_generated + usage.tokens_replayed
    share = f"{usage.tokens_replayed / tokens:.1%}" if tokens else "-"
    return f"{usage.requests:,}", f"{tokens:,}", f"{usage.tokens_replayed:,}", share
