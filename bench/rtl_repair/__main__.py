"""``python -m bench.rtl_repair --json FILE [--quick]``: how many bugs five agents repair, and how many chance does.

Starts a Hive server with the embedded model and its roles, or asks one that runs already (``--url``). The players are
the model itself and the model whose Patcher has the adapter that was trained for it (``roles``). Every method is the
same program, held to the same edits; ``random`` is each of the searches again, with random patches. No bug is one that
the adapter was taught. ``--quick`` takes at most eight minutes on two cores.

``--keep-going`` compares nothing: it runs long sessions instead, ``--sessions`` at once, each ``--rounds`` patches long
over bugs of one design, which ``--trace`` records for benchmarks of the server's caches (``recording`` has the
commands).
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import cycle, islice
from pathlib import Path

from hive_frontend.evaluation.estimates import share
from rich.console import Console
from rich.table import Table

from bench.harness.command import Command, Pace, Run, above_0, positive
from bench.harness.servers import FAILURES, hive_server, served_model
from bench.rtl_repair.methods import Method, Shape, repair, scores, session
from bench.rtl_repair.report import RANDOM, SESSION, Report, Row, entry_of, row, row_of, shares, table
from bench.traces.recording import SUFFIX, RecordingModel, save_trace
from bench.training.rtl import taught
from examples.by_agent import ByAgent, usage_by_agent
from examples.rtl_repair.bugs import Bug, suite
from examples.rtl_repair.designs import all_designs
from examples.rtl_repair.tools import ToolsMissing, require_tools
from hive import Arm, Case, Client, HttpClient, acompare

QUICK_METHODS = (Method.DIRECT, Method.BEST_OF_N, Method.TOT)
QUICK_MINUTES = 8.0
RESERVE_S = 30.0
QUICK_BUGS, BUGS = 16, 44
QUICK_LOTS, LOTS = 10, 20
QUICK_BRANCHING, BRANCHING = 3, 4
BREADTH = 2
LOOKUPS = 2
RANDOM_SESSIONS = 16
"""Random searches at once: what takes time is simulated in other processes."""
BUGS_PER_SESSION = 8
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
        others = HttpClient(url, tenant=tenant)
        if self is Player.BASE:
            return others
        return ByAgent({PATCHER: HttpClient(url, model=PATCHER.lower(), tenant=tenant)}, others)

    def called(self, model: str) -> str:
        """What rows call the player."""
        return model if self is Player.BASE else f"{model} + roles"


@dataclass(frozen=True)
class Settings:
    bugs: int
    players: Sequence[Player]
    methods: Sequence[Method]
    shape: Shape
    lookups: int
    sessions: int
    lots: int
    """Random searches of each bug."""
    seed: int
    deadline: float | None
    """When to begin nothing more (``time.monotonic()``)."""


def _parser() -> Command:
    quick = "fewer methods, smaller searches, and as many bugs as fit into eight minutes"
    parser = Command("bench.rtl_repair", __doc__, quick=quick, width=140)
    option = parser.option
    option("--url", str, "URL", "a running Hive server (default: start one)")
    option("--bugs", positive, "N", f"how many bugs (default: {BUGS})")
    # Strings rather than players and methods: so an error lists what there is.
    parser.several("--players", map(str, Player), "(default: both; with --keep-going base)")
    parser.several("--methods", map(str, Method))
    option("--branching", positive, "N", f"patches tried in one state (default: {BRANCHING})")
    option("--breadth", positive, "N", f"states that tot keeps (default: {BREADTH})")
    option(
        "--rounds", positive, "N", "patches on top of each other; with --keep-going, of a session", default=2
    )
    option("--sessions", positive, "N", "bugs under repair at once (default: 4, with --quick 1)")
    option("--lookups", positive, "N", "looks at things before each patch", default=LOOKUPS)
    option("--lots", positive, "N", f"random searches per bug (default: {LOTS})")
    option("--minutes", above_0, "M", "begin no bugs that would end later")
    option("--seed", int, about="same seed, same bugs and same random searches", default=0)
    parser.add_argument("--keep-going", action="store_true", help="run long sessions, compare nothing")
    about = (
        f"record the model's requests (*{SUFFIX}); with --keep-going also a folder that exists, "
        f"for a file named after the sessions and their rounds, such as repair-4x21{SUFFIX}"
    )
    option("--trace", Path, "FILE", about)
    return parser


def _parse(argv: Sequence[str] | None) -> Run:
    """The options, with the folders made where files will be written; exits with one sentence if some are wrong."""
    parser = _parser()
    run = parser.run(argv)
    options = run.options
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
            options.trace /= f"repair-{options.sessions}x{options.rounds}{SUFFIX}"
        if not options.trace.name.endswith(SUFFIX):
            parser.error(f"--trace must end in {SUFFIX} or be a folder that exists")
    parser.check_writable("trace", options.trace)
    return run


def _settings(run: Run) -> Settings:
    options, quick = run.options, bool(run.options.quick)
    players = [Player.BASE] if options.keep_going else [Player.ROLES, Player.BASE]
    methods = QUICK_METHODS if quick else Method
    return Settings(
        bugs=options.bugs or (QUICK_BUGS if quick else BUGS),
        # A player that is named twice plays once.
        players=[Player(name) for name in dict.fromkeys(options.players or players)],
        methods=[Method(name) for name in dict.fromkeys(options.methods or methods)],
        shape=Shape(
            options.branching or (QUICK_BRANCHING if quick else BRANCHING),
            options.breadth or BREADTH,
            options.rounds,
        ),
        lookups=options.lookups,
        sessions=options.sessions,
        lots=options.lots or (QUICK_LOTS if quick else LOTS),
        seed=options.seed,
        deadline=run.deadline(RESERVE_S, QUICK_MINUTES),
    )


async def compared(
    models: Mapping[str, Mapping[Method, Client]], settings: Settings, console: Console
) -> tuple[list[Bug], list[Row]]:
    """All methods with all models, by what rows call them, on the same bugs: those for which there was time, and the
    rows."""
    # With other seeds, or many bugs, there would be some among them that the Patcher's lessons were about.
    bugs = await suite(settings.bugs, settings.seed, without={studied.bug.source for studied in taught()})
    pairs = [(who, method) for method in settings.methods for who in (*models, RANDOM)]

    def say(case: Case) -> None:
        if not case.arm.startswith(RANDOM):
            bug, outcome = bugs[case.item], "repairs it" if case.scores["solved"] else "fails"
            what = f"{case.arm} {outcome} ({case.scores['patches']} patches)"
            console.print(f"{bug.design}, line {bug.line}, {bug.kind}: {what}", highlight=False)

    of = partial(repair, shape=settings.shape, lookups=settings.lookups)
    found = await acompare(
        {
            f"{who}, {method}": Arm(partial(of, method=method, model=models[who][method]))
            if who in models
            else Arm(
                program=partial(of, method=method, model=None),
                repeat=settings.lots,
                concurrency=RANDOM_SESSIONS,
            )
            for who, method in pairs
        },
        # Arms take turns with some bugs, so that a run that is out of time has asked all the same.
        Pace(settings.deadline).take(bugs, settings.sessions),
        scores,
        seed=settings.seed,
        concurrency=settings.sessions,
        on_case=say,
        on_error="raise",
    )
    rows = [
        row_of(who, method, tried, bugs, settings.shape.budget(method))
        for (who, method), tried in zip(pairs, found.arms.values(), strict=True)
    ]
    return bugs[: len(rows[0].by_task)], rows


async def keep_going(model: Client, name: str, settings: Settings) -> tuple[list[Bug], list[Row]]:
    """Long sessions at once, each over bugs of a design of its own; all the bugs, and one row."""
    rounds = settings.shape.rounds
    designs = all_designs()
    chosen = [
        await suite(BUGS_PER_SESSION, settings.seed + number, [designs[number % len(designs)]])
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
    repaired = [[number < len(outcome.repairs)] for _, outcome in runs for number in range(outcome.bugs)]
    one = row(
        name,
        method=SESSION,
        search=None,
        patches_allowed=rounds,
        solved=sum(map(sum, repaired)),
        tasks=len(repaired),
        rate=share(repaired),
        patches=sum(outcome.patches for _, outcome in runs),
        wall_s=time.monotonic() - began,
        agents=usage_by_agent(result.totals.agents for result, _ in runs),
    )
    return [bug for bugs in chosen for bug in bugs], [one]


def main(argv: Sequence[str] | None = None) -> None:
    run = _parse(argv)
    options, settings = run.options, _settings(run)
    try:
        require_tools()
        roles = Player.ROLES in settings.players
        with hive_server(options.url, roles=roles, say=run.console.print) as url:
            name = served_model(url)
            first = settings.players[0]
            # What is recorded are the requests of one client, whatever the method.
            recorder = RecordingModel(first.at_server(url)) if options.trace else None
            if options.keep_going:
                work = keep_going(recorder or first.at_server(url), first.called(name), settings)
            else:
                run_id = secrets.token_hex(4)
                models = {
                    player.called(name): {
                        # A tenant each: no method shall replay what another one, or another run, has paid for.
                        method: recorder or player.at_server(url, f"{run_id}:{player}:{method}")
                        for method in settings.methods
                    }
                    for player in settings.players
                }
                work = compared(models, settings, run.console)
            bugs, rows = asyncio.run(work)
    except (*FAILURES, ToolsMissing) as error:
        raise SystemExit(f"bench: {error}") from None
    report = Report(
        **run.how_made(),
        model=name,
        seed=settings.seed,
        sessions=settings.sessions,
        lookups=settings.lookups,
        left_out=0 if options.keep_going else settings.bugs - len(bugs),
        bugs=[entry_of(bug) for bug in bugs],
        rows=rows,
    )
    shown: list[Table | str] = [table(report)]
    if recorder is not None:
        trace = recorder.trace()
        save_trace(trace, options.trace)
        size = options.trace.stat().st_size / 1024
        shown.insert(0, f"trace: {options.trace.name}, {len(trace.requests)} requests, {size:.0f} KiB")
    found = shares(report)

    def plot(folder: Path, stem: str) -> list[Path]:
        from bench.harness.plots import write_plot

        return [write_plot(found, f"RTL repair: {len(bugs)} bugs", folder / f"{stem}.png")]

    run.finish(report, shown, plot if found else None)


if __name__ == "__main__":
    main()
