"""``python -m bench.game24 --json FILE [--quick]``: how many puzzles are solved, by whom, how, and how many by chance.

Starts a Hive server with the embedded model and its roles, or asks one that runs already (``--url``). The players are
the roles (adapters that were trained for the game) and the model itself; the methods are one program, straight on and
under three searches of the same budget; ``random`` is each of them again with every answer by lot. Puzzles are those
of the test set, which nobody was trained on, in an order that is drawn by lot. ``--quick`` has the roles play as many
as fit into eight minutes on two cores.

``--first 1000 --puzzles 50`` takes the puzzles that settings are to be chosen by.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import secrets
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from bench.game24.methods import Attempt, Method, Shape, attempts, attempts_by_lot
from bench.game24.players import Player, at_server
from bench.game24.puzzles import COUNT, TEST_SET, Puzzle, puzzles
from bench.game24.report import RANDOM, Report, Row, row_of, shares, table
from bench.logits_cache.client import BenchError
from bench.logits_cache.machine import public_command
from bench.logits_cache.servers import served_model, started
from bench.report_file import can_plot, how_made, not_writable
from hive import ModelError
from hive.server.embedded_model import EmbeddedModelError, ensure_embedded_model
from hive.server.roles import lora_flags
from hive.server.server_process import ServerDied
from sglang_patches.cpu_platform import needed as on_cpu

QUICK_MINUTES = 8.0
RESERVE_S = 30.0
"""Kept back where time is limited: puzzles may take longer than those before them, and ending takes seconds."""
CONCURRENCY = 8
QUICK_LOTS, LOTS = 10, 20


@dataclass(frozen=True)
class Settings:
    """What to run."""

    puzzles: Sequence[Puzzle]
    """In the order in which they are played."""
    players: Sequence[Player]
    methods: Sequence[Method]
    shape: Shape
    lots: int
    seed: int
    concurrency: int
    deadline: float | None
    """When to begin nothing more (``time.monotonic()``)."""


def _parser() -> argparse.ArgumentParser:
    shape = Shape()
    parser = argparse.ArgumentParser(
        prog="python -m bench.game24",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="write the report here")
    parser.add_argument(
        "--quick", action="store_true", help="as many puzzles as fit into eight minutes, and only the roles"
    )
    parser.add_argument("--url", metavar="URL", help="a running Hive server (default: start one)")
    # Strings rather than players and methods: so an error lists what there is.
    parser.add_argument(
        "--players",
        nargs="+",
        choices=[str(player) for player in Player],
        metavar="PLAYER",
        help="roles, base or both (default; with --quick: roles)",
    )
    parser.add_argument(
        "--methods",
        nargs="+",
        choices=[str(method) for method in Method],
        metavar="METHOD",
        help=f"of {', '.join(Method)} (default: all)",
    )
    parser.add_argument(
        "--first",
        type=int,
        default=TEST_SET.start,
        metavar="RANK",
        help="rank of the first puzzle: 0 is the easiest (default: %(default)s, the first of the test set)",
    )
    parser.add_argument(
        "--puzzles", type=int, default=len(TEST_SET), metavar="N", help="(default: %(default)s)"
    )
    parser.add_argument(
        "--branching",
        type=int,
        default=shape.branching,
        metavar="N",
        help="proposals for one position (default: %(default)s)",
    )
    parser.add_argument(
        "--breadth",
        type=int,
        default=shape.breadth,
        metavar="N",
        help="positions that tot keeps (default: %(default)s)",
    )
    parser.add_argument(
        "--votes",
        type=int,
        default=shape.votes,
        metavar="N",
        help="words of the valuer on one position (default: %(default)s)",
    )
    parser.add_argument(
        "--temperature",
        type=float,
        default=shape.temperature,
        metavar="T",
        help="of proposals, in searches (default: %(default)s)",
    )
    parser.add_argument(
        "--distinct",
        action=argparse.BooleanOptionalAction,
        default=shape.distinct,
        help="draw the proposals for a position without replacement (default: %(default)s)",
    )
    parser.add_argument(
        "--lots",
        type=int,
        metavar="N",
        help=f"searches by lot per puzzle (default: {LOTS}, with --quick {QUICK_LOTS})",
    )
    parser.add_argument("--minutes", type=float, metavar="M", help="begin no puzzles that would end later")
    parser.add_argument("--seed", type=int, default=0, help="same seed, same order and same lots")
    parser.add_argument(
        "--concurrency",
        type=int,
        default=CONCURRENCY,
        metavar="N",
        help="puzzles at once (default: %(default)s)",
    )
    return parser


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options, with the report's folder made; exits with one sentence if some are wrong."""
    parser = _parser()
    options = parser.parse_args(argv)
    for name in ("puzzles", "branching", "breadth", "votes", "lots", "concurrency"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1")
    if not 0 <= options.first < options.first + options.puzzles <= COUNT:
        parser.error(
            f"there are {COUNT} puzzles, of ranks 0 to {COUNT - 1}: --first {options.first} "
            f"--puzzles {options.puzzles} asks for others"
        )
    if options.minutes is not None and not options.minutes > 0:
        parser.error("--minutes must be above 0")
    if not 0 < options.temperature < 100:
        parser.error("--temperature must be above 0 and below 100")
    if problem := not_writable(options.json):
        parser.error(f"--json: {options.json} cannot be written: {problem}")
    return options


def _settings(options: argparse.Namespace, began: float) -> Settings:
    chosen = list(puzzles(options.first, options.first + options.puzzles))
    # Ranks go from easy to hard: the first ones would be no fair sample of them.
    random.Random(options.seed).shuffle(chosen)
    players = (Player.ROLES,) if options.quick else (Player.ROLES, Player.BASE)
    minutes = QUICK_MINUTES if options.quick and options.minutes is None else options.minutes
    return Settings(
        puzzles=chosen,
        # Whoever is named twice plays once.
        players=[Player(name) for name in dict.fromkeys(options.players or players)],
        methods=[Method(name) for name in dict.fromkeys(options.methods or Method)],
        shape=Shape(options.branching, options.breadth, options.votes, options.temperature, options.distinct),
        lots=options.lots or (QUICK_LOTS if options.quick else LOTS),
        seed=options.seed,
        concurrency=options.concurrency,
        deadline=None if minutes is None else began + 60 * minutes - RESERVE_S,
    )


async def compare(url: str, model: str, settings: Settings, console: Console) -> list[Row]:
    """All players with all methods on the same puzzles, those for which there was time; the rows."""
    names = {Player.ROLES: f"{model} + roles", Player.BASE: model}
    run = secrets.token_hex(4)
    done: dict[tuple[str, Method], list[Sequence[Attempt]]] = defaultdict(list)
    wall_s: dict[tuple[str, Method], float] = defaultdict(float)
    async with contextlib.AsyncExitStack() as stack:
        clients = {}
        for player in settings.players:
            for method in settings.methods:
                # A tenant each: no method shall replay what another one, or another run, has paid for.
                client = at_server(
                    url,
                    player,
                    distinct=settings.shape.distinct_in(method),
                    tenant=f"{run}:{player}:{method}",
                )
                stack.push_async_callback(client.aclose)
                clients[player, method] = client
        longest = 0.0
        for first in range(0, len(settings.puzzles), settings.concurrency):
            began = time.monotonic()
            if settings.deadline is not None and began + longest > settings.deadline:
                break
            # All methods take their turn with some puzzles, so that a run out of time has asked all the same.
            some = settings.puzzles[first : first + settings.concurrency]
            for method in settings.methods:
                for player in settings.players:
                    made, seconds = await attempts(
                        some, method, settings.shape, player, clients[player, method], seed=settings.seed
                    )
                    done[names[player], method] += [[attempt] for attempt in made]
                    wall_s[names[player], method] += seconds
                    console.print(
                        f"{player}, {method}: "
                        + "; ".join(f"{a.puzzle} {'solved' if a.solved else '-'}" for a in made),
                        highlight=False,
                    )
                drawing = time.monotonic()
                done[RANDOM, method] += [
                    await attempts_by_lot(
                        puzzle, method, settings.shape, seed=settings.seed, lots=settings.lots
                    )
                    for puzzle in some
                ]
                wall_s[RANDOM, method] += time.monotonic() - drawing
            longest = max(longest, time.monotonic() - began)
    return [
        row_of(
            who,
            method,
            done[who, method],
            allowed=settings.shape.budget(method),
            wall_s=wall_s[who, method],
        )
        for who in (*(names[player] for player in settings.players), RANDOM)
        for method in settings.methods
    ]


def main(argv: Sequence[str] | None = None) -> None:
    began = time.monotonic()
    options = _parse(argv)
    settings = _settings(options, began)
    # In a file the table shall have the room that it needs.
    console = Console(width=None if sys.stdout.isatty() else 160)
    try:
        with contextlib.ExitStack() as stack:
            url = options.url and options.url.rstrip("/")
            if url is None:
                console.print("starting a server")
                flags = lora_flags(on_cpu()) if Player.ROLES in settings.players else []
                url = stack.enter_context(started(["hive"], ensure_embedded_model(), flags, on_cpu()))["hive"]
            model = served_model(url)
            rows = asyncio.run(compare(url, model, settings, console))
    except (BenchError, EmbeddedModelError, FileNotFoundError, ModelError, ServerDied, ValueError) as error:
        raise SystemExit(f"bench: {error}") from None
    report = Report(
        **how_made(public_command(sys.argv[1:] if argv is None else argv, "bench.game24"), began),
        model=model,
        seed=settings.seed,
        concurrency=settings.concurrency,
        lots=settings.lots,
        shape=settings.shape,
        left_out=len(settings.puzzles) - rows[0].tasks,
        rows=rows,
    )
    options.json.write_text(report.model_dump_json(indent=1) + "\n")
    console.print(table(report))
    if can_plot(console):
        from bench.solved_plot import write_plot

        title = f"Game of 24: {rows[0].tasks} puzzles"
        path = write_plot(shares(report), title, options.json.with_suffix(".png"))
        console.print(f"plot: {path.name}", highlight=False)
    console.print(f"report: {options.json.name} ({report.seconds:.0f} s)", highlight=False)


if __name__ == "__main__":
    main()
