"""``python -m bench.rtl_repair --json FILE [--quick]``: how many bugs five agents repair, and how many chance does.

Starts a Hive server with the embedded model and its roles, or asks one that runs already (``--url``). The players are
the model itself and the model whose Patcher has the adapter that was trained for it (``roles``). Every method is the
same program, held to the same edits; ``random`` is each of the searches again, with patches drawn by lot. No bug is one
that the adapter was taught. ``--quick`` takes at most eight minutes on two cores.

``--keep-going`` compares nothing: it runs long sessions instead, ``--sessions`` at once, each ``--rounds`` patches long
over bugs of one design, which ``--trace`` records for benchmarks of the server's caches (``recording`` has the
commands).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import secrets
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import cycle, islice
from pathlib import Path

from rich.console import Console

from bench.by_agent import ByAgent
from bench.logits_cache.client import BenchError
from bench.logits_cache.machine import public_command
from bench.logits_cache.servers import served_model, started
from bench.report_file import can_plot, how_made, not_writable
from bench.roles.rtl import taught
from bench.rtl_repair.bugs import Bug, suite
from bench.rtl_repair.designs import Design, all_designs
from bench.rtl_repair.methods import Attempt, Method, Shape, attempts, session
from bench.rtl_repair.random_arm import searches_by_lot
from bench.rtl_repair.recording import RecordingModel, save_trace
from bench.rtl_repair.report import RANDOM, SESSION, Report, Row, entry_of, row, row_of, shares, table
from bench.rtl_repair.tools import ToolsMissing, require_tools
from bench.tally import usage_by_agent
from hive import Client, HttpClient, ModelError
from hive.server.embedded_model import EmbeddedModelError, ensure_embedded_model
from hive.server.roles import lora_flags
from hive.server.server_process import ServerDied
from sglang_patches.cpu_platform import needed as on_cpu

QUICK_METHODS = (Method.DIRECT, Method.BEST_OF_N, Method.TOT)
QUICK_MINUTES = 8.0
RESERVE_S = 30.0
"""Kept back where time is limited: a bug may take longer than the ones before it, and ending takes seconds."""
QUICK_BUGS, BUGS = 16, 44
QUICK_LOTS, LOTS = 10, 20
QUICK_BRANCHING, BRANCHING = 3, 4
BREADTH = 2
LOOKUPS = 2
BUGS_PER_SESSION = 8
TRACE_SUFFIX = ".json.xz"
PATCHER = "Patcher"
"""The agent that has an adapter."""
COMPARING = ("quick", "bugs", "methods", "branching", "breadth", "lots", "minutes")
"""Options without a meaning for sessions that keep going."""


class Player(StrEnum):
    """Whose model the agents have."""

    BASE = "base"
    """The served model, all of them."""
    ROLES = "roles"
    """The Patcher has the adapter `patcher`."""

    def at_server(self, url: str, tenant: str | None = None) -> Client:
        """The player at a server."""
        others = HttpClient(url, tenant=tenant)
        if self is Player.BASE:
            return others
        return ByAgent({PATCHER: HttpClient(url, model=PATCHER.lower(), tenant=tenant)}, others)

    def called(self, model: str) -> str:
        """What rows call the player."""
        return model if self is Player.BASE else f"{model} + roles"


@dataclass(frozen=True)
class Settings:
    """What to run."""

    bugs: int
    players: Sequence[Player]
    methods: Sequence[Method]
    shape: Shape
    lookups: int
    sessions: int
    lots: int
    seed: int
    deadline: float | None
    """When to begin nothing more (``time.monotonic()``)."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.rtl_repair",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="write the report here")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="fewer methods, smaller searches, and as many bugs as fit into eight minutes",
    )
    parser.add_argument("--url", metavar="URL", help="a running Hive server (default: start one)")
    parser.add_argument("--bugs", type=int, metavar="N", help=f"how many bugs (default: {BUGS})")
    # Strings rather than players and methods: so an error lists what there is.
    parser.add_argument(
        "--players",
        nargs="+",
        choices=[str(player) for player in Player],
        metavar="PLAYER",
        help="base, roles or both (default: both; with --keep-going base)",
    )
    parser.add_argument("--methods", nargs="+", choices=[str(method) for method in Method], metavar="METHOD")
    parser.add_argument(
        "--branching", type=int, metavar="N", help=f"patches tried in one state (default: {BRANCHING})"
    )
    parser.add_argument(
        "--breadth", type=int, metavar="N", help=f"states that tot keeps (default: {BREADTH})"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=2,
        metavar="N",
        help="patches on top of each other; with --keep-going, of a session",
    )
    parser.add_argument(
        "--sessions", type=int, metavar="N", help="bugs under repair at once (default: 4, with --quick 1)"
    )
    parser.add_argument(
        "--lookups",
        type=int,
        default=LOOKUPS,
        metavar="N",
        help=f"looks at things before each patch (default: {LOOKUPS})",
    )
    parser.add_argument("--lots", type=int, metavar="N", help=f"searches by lot per bug (default: {LOTS})")
    parser.add_argument("--minutes", type=float, metavar="M", help="begin no bugs that would end later")
    parser.add_argument("--seed", type=int, default=0, help="same seed, same bugs and same lots")
    parser.add_argument("--keep-going", action="store_true", help="run long sessions, compare nothing")
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help=f"record the model's requests (*{TRACE_SUFFIX}); with --keep-going also a folder that exists, "
        f"for a file named after the sessions and their rounds, such as repair-4x21{TRACE_SUFFIX}",
    )
    return parser


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options, with the folders made where files will be written; exits with one sentence if some are wrong."""
    parser = _parser()
    options = parser.parse_args(argv)
    for name in ("bugs", "branching", "breadth", "rounds", "lookups", "sessions", "lots"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1")
    if options.minutes is not None and not options.minutes > 0:
        parser.error("--minutes must be above 0")
    if options.keep_going and (idle := [f"--{name}" for name in COMPARING if getattr(options, name)]):
        parser.error(f"--keep-going compares nothing: leave out {', '.join(idle)}")
    # On two cores a bug beside another one only takes longer.
    options.sessions = options.sessions or (1 if options.quick else 4)
    if options.players and len(options.players) > 1 and (options.keep_going or options.trace):
        parser.error("--keep-going and --trace are for one of the --players")
    if options.trace and not options.players:
        options.players = [Player.BASE]
    if options.trace is not None:
        if options.trace.is_dir():
            if not options.keep_going:
                parser.error("--trace may be a folder only with --keep-going; name a file")
            options.trace /= f"repair-{options.sessions}x{options.rounds}{TRACE_SUFFIX}"
        if not options.trace.name.endswith(TRACE_SUFFIX):
            parser.error(f"--trace must end in {TRACE_SUFFIX} or be a folder that exists")
    for name in ("json", "trace"):
        path: Path | None = getattr(options, name)
        if path is not None and (problem := not_writable(path)):
            parser.error(f"--{name}: {path} cannot be written: {problem}")
    return options


async def compare(
    models: Mapping[str, Mapping[Method, Client]], settings: Settings, console: Console
) -> tuple[list[Bug], list[Row]]:
    """All methods with all models, by what rows call them, on the same bugs: those for which there was time, and the
    rows."""
    # With other seeds, or many bugs, there would be some among them that the Patcher's lessons were about.
    bugs = await suite(settings.bugs, settings.seed, without={studied.bug.source for studied in taught()})
    done: dict[tuple[str, Method], list[Attempt]] = defaultdict(list)
    wall_s: dict[tuple[str, Method], float] = defaultdict(float)
    longest = 0.0
    for first in range(0, len(bugs), settings.sessions):
        began = time.monotonic()
        if settings.deadline is not None and began + longest > settings.deadline:
            bugs = bugs[:first]
            break
        # All methods take their turn with some bugs, so that a run that is out of time has asked all the same.
        some = bugs[first : first + settings.sessions]
        for method in settings.methods:
            seed = settings.seed + first
            for name, by_method in models.items():
                made, seconds = await attempts(
                    some,
                    method,
                    settings.shape,
                    by_method[method],
                    seed=seed,
                    sessions=settings.sessions,
                    lookups=settings.lookups,
                )
                for attempt in made:
                    bug = attempt.bug
                    console.print(
                        f"{bug.design}, line {bug.line}, {bug.kind}: {name}, {method} "
                        f"{'repairs it' if attempt.solved else 'fails'} ({attempt.patches} patches)",
                        highlight=False,
                    )
                done[name, method] += made
                wall_s[name, method] += seconds
            drawn, seconds = await searches_by_lot(
                some, method, settings.shape, seed=seed, lots=settings.lots
            )
            done[RANDOM, method] += drawn
            wall_s[RANDOM, method] += seconds
        longest = max(longest, time.monotonic() - began)
    rows = [
        row_of(who, method, done[who, method], bugs, settings.shape.budget(method), wall_s[who, method])
        for method in settings.methods
        for who in (*models, RANDOM)
    ]
    return bugs, rows


async def keep_going(model: Client, name: str, settings: Settings) -> tuple[list[Bug], list[Row]]:
    """Long sessions at once, each over bugs of a design of its own; all the bugs, and one row."""
    rounds = settings.shape.rounds
    designs = all_designs()
    chosen = [
        await _bugs_of(designs[number % len(designs)], settings.seed + number)
        for number in range(settings.sessions)
    ]
    began = time.monotonic()
    runs = await asyncio.gather(
        *(
            # Every bug takes at least one patch: a session never runs out of bugs before its rounds are over.
            session(
                list(islice(cycle(bugs), rounds)),
                model,
                rounds=rounds,
                seed=settings.seed + number,
                lookups=settings.lookups,
            )
            for number, bugs in enumerate(chosen)
        )
    )
    one = row(
        name,
        SESSION,
        None,
        patches_allowed=rounds,
        solved=sum(len(outcome.repairs) for _, outcome in runs),
        tasks=sum(outcome.bugs for _, outcome in runs),
        patches=sum(outcome.patches for _, outcome in runs),
        wall_s=time.monotonic() - began,
        agents=usage_by_agent(result.totals.agents for result, _ in runs),
    )
    return [bug for bugs in chosen for bug in bugs], [one]


async def _bugs_of(design: Design, seed: int) -> list[Bug]:
    return await suite(BUGS_PER_SESSION, seed, [design])


def main(argv: Sequence[str] | None = None) -> None:
    began = time.monotonic()
    options = _parse(argv)
    quick: bool = options.quick
    minutes = QUICK_MINUTES if quick and options.minutes is None else options.minutes
    settings = Settings(
        bugs=options.bugs or (QUICK_BUGS if quick else BUGS),
        players=[
            Player(name)
            # Whoever is named twice plays once.
            for name in dict.fromkeys(
                options.players or ([Player.BASE] if options.keep_going else [Player.ROLES, Player.BASE])
            )
        ],
        methods=[
            Method(name) for name in dict.fromkeys(options.methods or (QUICK_METHODS if quick else Method))
        ],
        shape=Shape(
            options.branching or (QUICK_BRANCHING if quick else BRANCHING),
            options.breadth or BREADTH,
            options.rounds,
        ),
        lookups=options.lookups,
        sessions=options.sessions,
        lots=options.lots or (QUICK_LOTS if quick else LOTS),
        seed=options.seed,
        deadline=None if minutes is None else began + 60 * minutes - RESERVE_S,
    )
    # In a file the table shall have the room that it needs.
    console = Console(width=None if sys.stdout.isatty() else 140)
    try:
        require_tools()
        with contextlib.ExitStack() as stack:
            url = options.url and options.url.rstrip("/")
            if url is None:
                console.print("starting a server")
                flags = lora_flags(on_cpu()) if Player.ROLES in settings.players else []
                url = stack.enter_context(started(["hive"], ensure_embedded_model(), flags, on_cpu()))["hive"]
            name = served_model(url)
            first = settings.players[0]
            # What is recorded are the requests of one client, whatever the method.
            recorder = RecordingModel(first.at_server(url)) if options.trace else None
            if options.keep_going:
                work = keep_going(recorder or first.at_server(url), first.called(name), settings)
            else:
                run = secrets.token_hex(4)
                models = {
                    player.called(name): {
                        # A tenant each: nobody shall replay what another one, or another run, has paid for.
                        method: recorder or player.at_server(url, f"{run}:{player}:{method}")
                        for method in settings.methods
                    }
                    for player in settings.players
                }
                work = compare(models, settings, console)
            bugs, rows = asyncio.run(work)
    except (
        BenchError,
        EmbeddedModelError,
        FileNotFoundError,
        ModelError,
        ServerDied,
        ToolsMissing,
        ValueError,
    ) as error:
        raise SystemExit(f"bench: {error}") from None
    report = Report(
        **how_made(public_command(sys.argv[1:] if argv is None else argv, "bench.rtl_repair"), began),
        model=name,
        seed=settings.seed,
        sessions=settings.sessions,
        lookups=settings.lookups,
        left_out=0 if options.keep_going else settings.bugs - len(bugs),
        bugs=[entry_of(bug) for bug in bugs],
        rows=rows,
    )
    options.json.write_text(report.model_dump_json(indent=1) + "\n")
    if recorder is not None:
        trace = recorder.trace()
        save_trace(trace, options.trace)
        console.print(
            f"trace: {options.trace.name}, {len(trace.requests)} requests, "
            f"{options.trace.stat().st_size / 1024:.0f} KiB",
            highlight=False,
        )
    console.print(table(report))
    if (found := shares(report)) and can_plot(console):
        from bench.solved_plot import write_plot

        path = write_plot(found, f"RTL repair: {len(bugs)} bugs", options.json.with_suffix(".png"))
        console.print(f"plot: {path.name}", highlight=False)
    console.print(f"report: {options.json.name} ({report.seconds:.0f} s)", highlight=False)


if __name__ == "__main__":
    main()
