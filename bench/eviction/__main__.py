"""``python -m bench.eviction --json FILE [--quick]``: what an eviction policy is worth.

Replays traffic on SGLang's radix cache, without a model: what counts is which prompt tokens are found. Beside each
policy stands a cache that knows the future. ``--quick`` takes about a minute on two cores.

With ``--trace FILE`` instead: sessions of real agents, whose file says which blocks of their prompts are the same, on
the same radix cache (``bench/traces/sessions.py`` has the formats).
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

from bench.eviction.cost import CostRow, measure_cost
from bench.eviction.policies import CLAIRVOYANT, MAIN_POLICIES, POLICIES
from bench.eviction.pool_replay import Leak
from bench.eviction.report import (
    BASELINE,
    Report,
    Row,
    ServedRow,
    SessionRow,
    cost_table,
    goals_of,
    goals_table,
    rows_of,
    rows_table,
    served_table,
    sessions_table,
)
from bench.eviction.scenarios import SCENARIOS, Replayed, Work, recorded, replayed
from bench.eviction.serve import Pressure, serve
from bench.eviction.sessions import (
    ARMS,
    BLOCK,
    POOLS,
    QUICK_REQUESTS,
    REQUESTS,
    SessionWork,
    Traffic,
)
from bench.harness.client import BenchError
from bench.harness.command import Command, Run, above_0, positive
from bench.traces.recording import recordings
from bench.traces.sessions import Half
from hive.server.server_process import ServerDied

COST, RECORDED = "cost", "rtl"
PARTS = (*SCENARIOS, RECORDED, COST)
SEEDS, QUICK_SEEDS, TRACE_SEEDS = 10, 3, 3
COST_TURNS, QUICK_COST_TURNS = 9, 3


def _parser() -> Command:
    quick = f"{QUICK_SEEDS} seeds instead of {SEEDS} and fewer turns of the cost"
    parser = Command("bench.eviction", __doc__, quick=quick, plots=True, width=140)
    option, several = parser.option, parser.several
    option("--seeds", positive, "N", "so many seeds")
    several("--only", PARTS, "only these parts", PARTS)
    about = f"a recorded run to replay as part of {RECORDED} (repeatable; default: those of the bench)"
    option("--recording", Path, "FILE", about, action="append")
    parser.add_argument(
        *("--arms", "--policies"),
        nargs="+",
        choices=(*POLICIES, CLAIRVOYANT),
        help=f"beside {BASELINE} (and, without servers, {CLAIRVOYANT}) only these policies",
    )
    option("--workers", positive, "N", "processes", default=2)
    option("--trace", Path, "FILE", "replay sessions of agents (the options below), and nothing else")
    about = "of the radix cache, in tokens"
    option("--pools", positive, "TOKENS", about, nargs="+", default=POOLS)
    option("--sessions", positive, "N", "sessions at once", default=32)
    option("--requests", positive, "N", f"add sessions until they have so many (default: {REQUESTS:,})")
    about = "leave out sessions with longer prompts"
    option("--longest", positive, "TOKENS", about, default=10**9)
    parser.add_argument("--serve", action="store_true", help="replay on real servers, by seed 0")
    about = "further flags of the servers, in one word: '--model-path ...' (default: the embedded model)"
    option("--server-flags", shlex.split, "FLAGS", about, default=[])
    about = "on servers: blocks and pools are so many times smaller, 1 to 64, a power of 2"
    option("--shrink", int, "K", about, default=16, choices=[2**power for power in range(7)])
    option("--speed", above_0, "X", "on servers: pauses are so many times shorter", default=20.0)
    parser.add_argument(
        "--half",
        choices=get_args(Half),
        default="all",
        help="of the sessions, by the hash of their names: to build a policy with, or to check it (default: all)",
    )
    return parser


def measure(run: Run) -> Report:
    """The scenarios.

    Raises `ValueError` when a file is no trace, `OSError` when it cannot be read, and `Leak`.
    """
    options, console = run.options, run.console
    quick: bool = options.quick
    scenarios = [SCENARIOS[name] for name in SCENARIOS if name in options.only]
    if RECORDED in options.only:
        scenarios += [recorded(path) for path in options.recording or recordings()]
    policies = list(dict.fromkeys((BASELINE, *(options.arms or MAIN_POLICIES), CLAIRVOYANT)))
    cost: list[CostRow] = []
    if COST in options.only:
        # Alone on the machine: this is about time.
        console.print("cost of evicting")
        # Variants of a policy without agents or ends cost the same.
        timed = [name for name in policies if name in MAIN_POLICIES and POLICIES[name].hive]
        cost = measure_cost([BASELINE, *timed], QUICK_COST_TURNS if quick else COST_TURNS)
    work = [
        Work(scenario, seed, scenario.pools, policies)
        for seed in range(options.seeds or (QUICK_SEEDS if quick else SEEDS))
        for scenario in scenarios
        if seed == 0 or not scenario.recorded
    ]
    results: list[Replayed] = []
    for done, part in enumerate(replayed(work, options.workers), start=1):
        console.print(f"replayed {part[0].scenario}, seed {part[0].seed} ({done} of {len(work)})")
        results += part
    rows = rows_of(scenarios, results)
    goals = goals_of(rows, scenarios)
    return Report(
        **run.how_made(),
        scenarios={scenario.name: scenario.what for scenario in scenarios},
        goals=goals,
        rows=rows,
        cost=cost,
    )


def _plot_of(rows: Sequence[Row | SessionRow]) -> Callable[[Path, str], list[Path]]:
    def plot(folder: Path, stem: str) -> list[Path]:
        from bench.eviction.plots import draw_gaps

        return draw_gaps(rows, folder / f"{stem}-gaps.png")

    return plot


def measure_sessions(run: Run) -> None:
    """``--trace``. Raises `ValueError` when the file is no trace, and `OSError` when it cannot be read."""
    options, console = run.options, run.console
    quick: bool = options.quick
    longest = min(*options.pools, options.longest) // BLOCK
    arms = [arm for arm in options.arms or ARMS if arm != CLAIRVOYANT]
    requests = options.requests or (QUICK_REQUESTS if quick else REQUESTS)
    traffic = Traffic(options.trace, options.half, requests, options.sessions, longest)
    if options.serve:
        served: list[ServedRow] = []
        for pool in options.pools:
            pressure = Pressure(options.shrink, options.speed, options.sessions, pool)
            served += serve(traffic.sessions(0), arms, pressure, options.server_flags, console.print)
        run.finish(Report(**run.how_made(), served=served), [served_table(served)])
        return
    work = [
        SessionWork(traffic, seed, pool, arms)
        for seed in range(options.seeds or (1 if quick else TRACE_SEEDS))
        for pool in options.pools
    ]
    rows: list[SessionRow] = []
    for done, part in enumerate(replayed(work, options.workers), start=1):
        console.print(f"replayed a pool of {part[0].pool:,}, seed {part[0].seed} ({done} of {len(work)})")
        rows += part
    rows.sort(key=lambda row: (row.pool, row.seed))
    run.finish(Report(**run.how_made(), sessions=rows), [sessions_table(rows)], _plot_of(rows))


def main(argv: Sequence[str] | None = None) -> None:
    run = _parser().run(argv)
    try:
        if run.options.trace is not None:
            measure_sessions(run)
            return
        report = measure(run)
    except (ValueError, OSError, Leak, ServerDied, BenchError) as error:
        raise SystemExit(f"bench: {error}") from None
    tables = [
        *([rows_table(report.rows)] if report.rows else []),
        *([cost_table(report.cost)] if report.cost else []),
        *([goals_table(report.goals)] if report.goals else []),
    ]
    run.finish(report, tables, _plot_of(report.rows))


if __name__ == "__main__":
    main()
