"""Game of 24 by search: a whole program, and a command that runs it.

    python -m examples.game24 --url http://localhost:30000
    python -m examples.game24 --url http://localhost:30000 --search mcts
    python -m examples.game24 --url http://localhost:30000 --roles

The agent below is the program: it plays one game as if there were only one way to play it. The supervisor in
its decorator makes a search of it. Two agents appear at the server: the `proposer` writes steps, held to the
rules by a grammar, and the `valuer` judges positions in words. The program computes, and checks, exactly.

`--search` puts the same program, unchanged, under another supervisor: Tree of Thoughts (`tot`), Monte Carlo tree
search (`mcts`) or best-of-n (`best-of-n`), with a like number of proposals for each. `--roles` has it played by two
adapters that were trained for it instead of by the model itself; `python -m bench.game24` compares all of these.

The command prints what the search solved next to what the same search solves with every answer drawn by lot.
"""

from __future__ import annotations

import asyncio
import logging
from enum import Enum
from pathlib import Path
from typing import Annotated, Final

import typer
from hive_frontend.supervisors import MCTS, BestOfN
from rich.console import Console

from bench.game24 import prompts
from bench.game24.players import PROPOSER, VALUER, Player, at_server
from bench.game24.puzzles import COUNT, Puzzle
from bench.game24.puzzles import puzzles as puzzles_of_ranks
from bench.game24.random_arm import searches_by_lot
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
    LiveView,
    ModelError,
    RunResult,
    Supervisor,
    TreeOfThoughts,
    agent,
    arun,
    fail,
    gen,
    score,
    write_tree,
)

STEPS: Final = 3
"""Steps from four numbers to one: what a game costs that is played straight on."""
BRANCHING: Final = 5
BREADTH: Final = 3
VOTES: Final = 3
PROPOSALS: Final = 35
"""What Tree of Thoughts proposes with these settings: 5 for the puzzle, then 3 * 5 and 3 * 5."""
WORKERS: Final = 4
"""Simulations of Monte Carlo tree search that run at once."""
LOTS: Final = 100


@agent(supervisor=TreeOfThoughts(branch_at="propose", branching=BRANCHING, breadth=BREADTH))
async def game24(
    numbers: Numbers, votes: int = VOTES, player: Player = Player.BASE, temperature: float = 1.0
) -> list[str]:
    """Play one game; returns its steps, or fails. `temperature` is that of the proposals."""
    steps: list[str] = []
    while len(numbers) > 1:
        proposal = await gen(
            player.propose(numbers),
            name="propose",
            agent=PROPOSER,
            raw=True,
            regex=step_regex(numbers),
            stop="=",
            max_tokens=32,
            temperature=temperature,
        )
        step = legal_step(numbers, proposal)
        steps.append(describe(numbers, step))
        numbers = apply_step(numbers, step)
        if len(numbers) > 1:
            question = player.judge(numbers)
            worth = 0.0
            # One vote after the other: the first makes the model read the position, the others are drawn
            # from what the server's Logits Cache kept of that.
            for _ in range(votes):
                word = await gen(
                    question,
                    name="value",
                    agent=VALUER,
                    raw=isinstance(question, str),
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


class Algorithm(Enum):
    """What may be said to `--search`."""

    TOT = "tot"
    MCTS = "mcts"
    BEST_OF_N = "best-of-n"


NAMES: Final = {
    Algorithm.TOT: "tree of thoughts",
    Algorithm.MCTS: "MCTS",
    Algorithm.BEST_OF_N: "best of n",
}


def supervisor_of(search: Algorithm, *, branching: int, breadth: int, proposals: int) -> Supervisor:
    """The supervisor of a search. Tree of Thoughts has a shape, the others have a number of proposals."""
    match search:
        case Algorithm.TOT:
            return TreeOfThoughts(branch_at="propose", branching=branching, breadth=breadth)
        case Algorithm.MCTS:
            # Each simulation makes one proposal and takes the valuer's word for the position that it leads to;
            # the reward of a dead end is the worst seen. The first solution, whatever its score, ends the search.
            return MCTS(
                branch_at="propose",
                simulations=proposals,
                branching=branching,
                rollout="value",
                # A little: three steps deep is where solutions are, and there are few proposals to get there.
                exploration=0.3,
                workers=WORKERS,
                target=0.0,
            )
        case Algorithm.BEST_OF_N:
            return BestOfN(max(1, proposals // STEPS))


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

            async def by_lot(
                lottery: Client, seed: int, numbers: Numbers = puzzle.numbers
            ) -> RunResult[list[str]]:
                return await arun(game24, numbers, votes, model=lottery, seed=seed, supervisor=supervisor)

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
            drawn = await searches_by_lot(by_lot, seed=seed + puzzle.rank, runs=lots, distinct=distinct)
            games.append(judge(puzzle, run, [lot.best is not None for lot in drawn]))
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
    lots: Annotated[int, typer.Option(min=1, help="Searches by lot per puzzle, to compare with.")] = LOTS,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same search.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for search trees and summary.")] = Path("out/game24"),
    json: Annotated[Path | None, typer.Option(help="Also write the summary to this file.")] = None,
    api_key: Annotated[str | None, typer.Option(envvar="HIVE_API_KEY", help="The server's API key.")] = None,
) -> None:
    """Play Game of 24 by search, next to the same search by lot."""
    if first + puzzles > COUNT:
        raise typer.BadParameter(f"there are {COUNT} puzzles: --first and --puzzles must not sum to more")
    player = Player.ROLES if roles else Player.BASE
    try:
        model = at_server(url, player, distinct=distinct, api_key=api_key)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--url") from None
    # A server that is gone is told about once, at the end; not again because a session cannot be ended there.
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
