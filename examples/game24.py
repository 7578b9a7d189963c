"""Game of 24 by Tree of Thoughts: a whole search program, and a command that runs it.

    python -m examples.game24 --url http://localhost:30000

The agent below is the program: it plays one game as if there were only one way to play it. The supervisor in
its decorator makes a search of it. Two agents appear at the server: the `proposer` writes steps, held to the
rules by a grammar, and the `valuer` judges positions in words. The program computes, and checks, exactly.

The command prints what the search solved next to what the same search solves with every choice drawn by lot.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from bench.game24 import prompts
from bench.game24.puzzles import COUNT, Puzzle
from bench.game24.puzzles import puzzles as puzzles_of_ranks
from bench.game24.random_arm import Shape
from bench.game24.rules import (
    Numbers,
    RuleError,
    Step,
    apply_step,
    describe,
    is_solved,
    parse_step,
    show,
    step_regex,
)
from bench.game24.summary import Summary, judge, summarise, table
from hive import (
    Client,
    HttpClient,
    LiveView,
    ModelError,
    TreeOfThoughts,
    agent,
    arun,
    fail,
    gen,
    score,
    write_tree,
)

BRANCHING: Final = 5
BREADTH: Final = 3
VOTES: Final = 3


@agent(supervisor=TreeOfThoughts(branch_at="propose", branching=BRANCHING, breadth=BREADTH))
async def game24(numbers: Numbers, votes: int = VOTES) -> list[str]:
    """Play one game; returns its steps, or fails."""
    steps: list[str] = []
    while len(numbers) > 1:
        proposal = await gen(
            prompts.propose(numbers),
            name="propose",
            agent="proposer",
            raw=True,
            regex=step_regex(numbers),
            stop="=",
            max_tokens=32,
            temperature=1.0,
        )
        step = legal_step(numbers, proposal)
        steps.append(describe(numbers, step))
        numbers = apply_step(numbers, step)
        if len(numbers) > 1:
            worth = 0.0
            # One vote after the other: the first makes the model read the position, the others are drawn
            # from what the server's Logits Cache kept of that.
            for _ in range(votes):
                word = await gen(
                    prompts.value(numbers),
                    name="value",
                    agent="valuer",
                    choices=list(prompts.WORTH),
                    max_tokens=8,
                    temperature=1.0,
                )
                worth += prompts.WORTH.get(word, 0.0)
            score(worth)
    if not is_solved(numbers):
        fail(f"ends in {show(numbers)}")
    return steps


def legal_step(numbers: Numbers, text: str) -> Step:
    """The step that the model wrote. A server that does not know grammars may let it write nonsense."""
    try:
        step = parse_step(text)
        apply_step(numbers, step)
    except RuleError as error:
        fail(str(error))
    return step


async def play(
    model: Client,
    puzzles: tuple[Puzzle, ...],
    *,
    shape: Shape,
    votes: int,
    seed: int,
    out: Path,
    console: Console,
) -> Summary:
    """Search the puzzles one after the other, watched; draw each search tree in `out`."""
    supervisor = TreeOfThoughts(branch_at="propose", branching=shape.branching, breadth=shape.breadth)
    games = []
    with LiveView(console=console) as view:
        for number, puzzle in enumerate(puzzles, start=1):
            view.title = f"{number}/{len(puzzles)}: {puzzle} (rank {puzzle.rank})"
            run = await arun(
                game24,
                puzzle.numbers,
                votes,
                model=model,
                seed=seed + puzzle.rank,
                supervisor=supervisor,
                on_event=view.on_event,
            )
            games.append(judge(puzzle, run, shape, seed))
            write_tree(run.tree, out / f"tree-{puzzle.rank}.html", title=f"Game of 24: {puzzle}")
            outcome = "; ".join(run.value) if run.value else "not solved"
            console.print(f"{puzzle}: {outcome}", highlight=False, markup=False)
    return summarise(games, shape, seed)


def main(
    url: Annotated[str, typer.Option(help="The server, such as http://localhost:30000.")],
    puzzles: Annotated[int, typer.Option(min=1, help="How many puzzles to play.")] = 4,
    first: Annotated[
        int,
        typer.Option(
            min=0, max=COUNT - 1, help="Rank of the first one: 0 is the easiest, 900 the test set's."
        ),
    ] = 0,
    branching: Annotated[int, typer.Option(min=1, help="Proposals per position.")] = BRANCHING,
    breadth: Annotated[int, typer.Option(min=1, help="Positions kept per step.")] = BREADTH,
    votes: Annotated[int, typer.Option(min=1, help="Judgements per position.")] = VOTES,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same search.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for search trees and summary.")] = Path("out/game24"),
    json: Annotated[Path | None, typer.Option(help="Also write the summary to this file.")] = None,
    api_key: Annotated[str | None, typer.Option(envvar="HIVE_API_KEY", help="The server's API key.")] = None,
) -> None:
    """Play Game of 24 by Tree of Thoughts, next to the same search by lot."""
    if first + puzzles > COUNT:
        raise typer.BadParameter(f"there are {COUNT} puzzles: --first and --puzzles must not sum to more")
    try:
        model = HttpClient(url, api_key=api_key)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--url") from None
    # A server that is gone is told about once, at the end; not again because a session cannot be ended there.
    logging.getLogger("hive_frontend").setLevel(logging.ERROR)
    console = Console()
    out.mkdir(parents=True, exist_ok=True)
    chosen = puzzles_of_ranks(first, first + puzzles)
    shape = Shape(branching=branching, breadth=breadth)
    try:
        summary = asyncio.run(
            play(model, chosen, shape=shape, votes=votes, seed=seed, out=out, console=console)
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
