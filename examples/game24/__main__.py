"""``python -m examples.game24``: play Game of 24 by search, next to the same search with random answers."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from examples.game24.players import Player, at_server
from examples.game24.program import BRANCHING, BREADTH, PROPOSALS, VOTES, Algorithm, game24, supervisor_of
from examples.game24.puzzles import COUNT, Puzzle
from examples.game24.puzzles import puzzles as puzzles_of_ranks
from examples.game24.random_baseline import random_searches
from examples.game24.rules import Numbers
from examples.game24.summary import Summary, judge, summarise, table
from hive import Client, LiveView, ModelError, RunResult, Supervisor, arun, write_tree

LOTS = 100
NAMES = {
    Algorithm.TOT: "tree of thoughts",
    Algorithm.MCTS: "MCTS",
    Algorithm.BEST_OF_N: "best of n",
}


async def play(
    model: Client,
    puzzles: tuple[Puzzle, ...],
    *,
    player: Player,
    search: Algorithm,
    supervisor: Supervisor,
    votes: int,
    distinct: bool,
    seed: int,
    lots: int,
    out: Path,
    console: Console,
) -> Summary:
    """Search the puzzles one after the other, watched; draw each search tree in `out`."""
    games = []
    with LiveView(console=console) as view:
        for number, puzzle in enumerate(puzzles, start=1):
            view.title = f"{number}/{len(puzzles)}: {puzzle} (rank {puzzle.rank})"

            async def search_at_random(
                model: Client, seed: int, numbers: Numbers = puzzle.numbers
            ) -> RunResult[list[str]]:
                return await arun(game24, numbers, votes, model=model, seed=seed, supervisor=supervisor)

            run = await arun(
                game24,
                puzzle.numbers,
                votes,
                player,
                model=model,
                seed=seed + puzzle.rank,
                supervisor=supervisor,
                on_event=view.on_event,
            )
            drawn = await random_searches(
                search_at_random, seed=seed + puzzle.rank, runs=lots, distinct=distinct
            )
            games.append(judge(puzzle, run, [each.best is not None for each in drawn]))
            write_tree(run.tree, out / f"tree-{puzzle.rank}.html", title=f"Game of 24: {puzzle}")
            outcome = "; ".join(run.value) if run.value else "not solved"
            console.print(f"{puzzle}: {outcome}", highlight=False, markup=False)
    return summarise(games, search=NAMES[search], supervisor=supervisor, lots=lots, seed=seed)


def main(
    url: Annotated[str, typer.Option(help="The server, such as http://localhost:30000.")],
    puzzles: Annotated[int, typer.Option(min=1, help="How many puzzles to play.")] = 4,
    first: Annotated[
        int,
        typer.Option(
            min=0, max=COUNT - 1, help="Rank of the first one: 0 is the easiest, 900 the test set's."
        ),
    ] = 0,
    search: Annotated[Algorithm, typer.Option(help="The algorithm.")] = Algorithm.TOT,
    branching: Annotated[int, typer.Option(min=1, help="Proposals per position (tot, mcts).")] = BRANCHING,
    breadth: Annotated[int, typer.Option(min=1, help="Positions kept per step (tot).")] = BREADTH,
    proposals: Annotated[
        int, typer.Option(min=1, help="Proposals per puzzle, at most (mcts, best-of-n).")
    ] = PROPOSALS,
    votes: Annotated[int, typer.Option(min=0, help="Judgements per position.")] = VOTES,
    roles: Annotated[
        bool, typer.Option("--roles", help="Ask the server's adapters `proposer` and `valuer`.")
    ] = False,
    distinct: Annotated[
        bool,
        typer.Option(
            "--distinct", help="Have no step from a position proposed twice; only a Hive server can."
        ),
    ] = False,
    lots: Annotated[int, typer.Option(min=1, help="Random searches per puzzle, to compare with.")] = LOTS,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same search.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for search trees and summary.")] = Path("out/game24"),
    json: Annotated[Path | None, typer.Option(help="Also write the summary to this file.")] = None,
    api_key: Annotated[str | None, typer.Option(envvar="HIVE_API_KEY", help="The server's API key.")] = None,
) -> None:
    """Play Game of 24 by search, next to the same search with random answers."""
    if first + puzzles > COUNT:
        raise typer.BadParameter(f"there are {COUNT} puzzles: --first and --puzzles must not sum to more")
    player = Player.ROLES if roles else Player.BASE
    try:
        model = at_server(url, player, distinct=distinct, api_key=api_key)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--url") from None
    # A lost server is reported once, at the end; not again because a session cannot be ended there.
    logging.getLogger("hive_frontend").setLevel(logging.ERROR)
    console = Console()
    out.mkdir(parents=True, exist_ok=True)
    chosen = puzzles_of_ranks(first, first + puzzles)
    supervisor = supervisor_of(search, branching=branching, breadth=breadth, proposals=proposals)
    try:
        summary = asyncio.run(
            play(
                model,
                chosen,
                player=player,
                search=search,
                supervisor=supervisor,
                votes=votes,
                distinct=distinct,
                seed=seed,
                lots=lots,
                out=out,
                console=console,
            )
        )
    except ModelError as error:
        hint = "" if error.status else "; start one with `python -m hive.launch_server --port PORT`"
        console.print(f"game24: {error}{hint}", style="red", highlight=False, markup=False, soft_wrap=True)
        raise typer.Exit(1) from None
    for path in filter(None, (out / "summary.json", json)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(summary.model_dump_json(indent=2) + "\n", encoding="utf-8")
    console.print(table(summary))
    console.print(f"Search trees and summary: {out}", highlight=False, markup=False)


if __name__ == "__main__":
    typer.run(main)
