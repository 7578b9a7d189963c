"""``python -m bench.game24 --json FILE [--quick]``: how many puzzles are solved, by whom, how, and how many by chance.

Starts a Hive server with the embedded model and its roles, or asks one that runs already (``--url``). The players are
the roles (adapters that were trained for the game) and the model itself; the methods are one program, straight on and
under three searches of the same budget; ``random`` is each of them again with random answers. Puzzles are those of the
test set, which no adapter was trained on, in random order. ``--quick`` has the roles play as many as fit into eight
minutes on two cores.

``--first 1000 --puzzles 50`` takes the puzzles that settings are to be chosen by.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from bench.game24.methods import Method, Shape, play, scores
from bench.game24.report import RANDOM, Report, Row, row_of, shares, table
from bench.harness.command import Command, Pace, Run, above_0, positive, temperature
from bench.harness.servers import FAILURES, hive_server, served_model
from examples.game24.players import Player, at_server
from examples.game24.puzzles import COUNT, TEST_SET, Puzzle, puzzles
from hive import Arm, Case, acompare

QUICK_MINUTES = 8.0
RESERVE_S = 30.0
CONCURRENCY = 8
QUICK_LOTS, LOTS = 10, 20


@dataclass(frozen=True)
class Settings:
    puzzles: Sequence[Puzzle]
    """In the order in which they are played."""
    players: Sequence[Player]
    methods: Sequence[Method]
    shape: Shape
    lots: int
    """Random searches of each puzzle."""
    seed: int
    concurrency: int
    deadline: float | None
    """When to begin nothing more (``time.monotonic()``)."""


def _parser() -> Command:
    shape = Shape()
    quick = "as many puzzles as fit into eight minutes, and only the roles"
    parser = Command("bench.game24", __doc__, quick=quick, width=160)
    option = parser.option
    option("--url", str, "URL", "a running Hive server (default: start one)")
    # Strings rather than players and methods: so an error lists what there is.
    parser.several("--players", map(str, Player), "roles, base or both (default; with --quick: roles)")
    parser.several("--methods", map(str, Method), "(default: all)")
    about = "rank of the first puzzle: 0 is the easiest (default: %(default)s, the first of the test set)"
    option("--first", int, "RANK", about, default=TEST_SET.start)
    option("--puzzles", positive, "N", "", default=len(TEST_SET))
    option("--branching", positive, "N", "proposals for one position", default=shape.branching)
    option("--breadth", positive, "N", "positions that tot keeps", default=shape.breadth)
    option("--votes", positive, "N", "words of the valuer on one position", default=shape.votes)
    option("--temperature", temperature, "T", "of proposals, in searches", default=shape.temperature)
    parser.add_argument(
        "--distinct",
        action=argparse.BooleanOptionalAction,
        default=shape.distinct,
        help="draw the proposals for a position without replacement (default: %(default)s)",
    )
    option(
        "--lots", positive, "N", f"random searches per puzzle (default: {LOTS}, with --quick {QUICK_LOTS})"
    )
    option("--minutes", above_0, "M", "begin no puzzles that would end later")
    option("--seed", int, about="same seed, same order and same random searches", default=0)
    option("--concurrency", positive, "N", "puzzles at once", default=CONCURRENCY)
    return parser


def _settings(run: Run) -> Settings:
    options = run.options
    chosen = list(puzzles(options.first, options.first + options.puzzles))
    # Ranks go from easy to hard: the first ones would be no fair sample of them.
    random.Random(options.seed).shuffle(chosen)
    players = (Player.ROLES,) if options.quick else (Player.ROLES, Player.BASE)
    return Settings(
        puzzles=chosen,
        # A player that is named twice plays once.
        players=[Player(name) for name in dict.fromkeys(options.players or players)],
        methods=[Method(name) for name in dict.fromkeys(options.methods or Method)],
        shape=Shape(options.branching, options.breadth, options.votes, options.temperature, options.distinct),
        lots=options.lots or (QUICK_LOTS if options.quick else LOTS),
        seed=options.seed,
        concurrency=options.concurrency,
        deadline=run.deadline(RESERVE_S, QUICK_MINUTES),
    )


async def compared(url: str, model: str, settings: Settings, console: Console) -> list[Row]:
    """All players with all methods on the same puzzles, those for which there was time; the rows."""
    shape = settings.shape
    names = {RANDOM: RANDOM, Player.ROLES: f"{model} + roles", Player.BASE: model}
    pairs = [(who, method) for who in (*settings.players, RANDOM) for method in settings.methods]
    run = secrets.token_hex(4)

    def say(case: Case) -> None:
        if not case.arm.startswith(RANDOM):
            outcome = "solved" if case.scores["solved"] else "-"
            console.print(f"{case.arm}: {settings.puzzles[case.item]} {outcome}", highlight=False)

    async with contextlib.AsyncExitStack() as stack:
        arms = {}
        for who, method in pairs:
            player, client = Player.BASE if who == RANDOM else Player(who), None
            if who != RANDOM:
                # A tenant each: no method shall replay what another one, or another run, has paid for.
                tenant = f"{run}:{player}:{method}"
                client = at_server(url, player, distinct=shape.distinct_in(method), tenant=tenant)
                stack.push_async_callback(client.aclose)
            program = partial(play, method=method, shape=shape, player=player, model=client)
            arms[f"{who}, {method}"] = Arm(program, repeat=1 if client else settings.lots)
        found = await acompare(
            arms,
            # Arms take turns with some puzzles, so that a run out of time has asked all the same.
            Pace(settings.deadline).take(settings.puzzles, settings.concurrency),
            scores,
            seed=settings.seed,
            concurrency=settings.concurrency,
            on_case=say,
            on_error="raise",
        )
    return [
        row_of(names[who], method, played, settings.puzzles, allowed=shape.budget(method))
        for (who, method), played in zip(pairs, found.arms.values(), strict=True)
    ]


def main(argv: Sequence[str] | None = None) -> None:
    parser = _parser()
    run = parser.run(argv)
    options = run.options
    if not 0 <= options.first < options.first + options.puzzles <= COUNT:
        parser.error(
            f"there are {COUNT} puzzles, of ranks 0 to {COUNT - 1}: --first {options.first} "
            f"--puzzles {options.puzzles} asks for others"
        )
    settings = _settings(run)
    try:
        roles = Player.ROLES in settings.players
        with hive_server(options.url, roles=roles, say=run.console.print) as url:
            model = served_model(url)
            rows = asyncio.run(compared(url, model, settings, run.console))
    except FAILURES as error:
        raise SystemExit(f"bench: {error}") from None
    report = Report(
        **run.how_made(),
        model=model,
        seed=settings.seed,
        concurrency=settings.concurrency,
        lots=settings.lots,
        shape=settings.shape,
        left_out=len(settings.puzzles) - rows[0].tasks,
        rows=rows,
    )

    def plot(folder: Path, stem: str) -> list[Path]:
        from bench.harness.plots import write_plot

        return [write_plot(shares(report), f"Game of 24: {rows[0].tasks} puzzles", folder / f"{stem}.png")]

    run.finish(report, [table(report)], plot)


if __name__ == "__main__":
    main()
