"""``python -m bench.eviction --json FILE [--quick]``: what an eviction policy is worth.

Replays traffic on SGLang's radix cache, without a model: what counts is which prompt tokens are found. Beside each
policy stands a cache that knows the future. Then replays a recorded run on real servers, one for each policy in turn.
``--quick`` takes about fifteen minutes on two cores, fourteen of them for the servers.
"""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from bench.eviction.cost import CostRow, measure_cost
from bench.eviction.measure import Replayed, Work, replayed
from bench.eviction.policies import CLAIRVOYANT, MAIN_POLICIES, POLICIES
from bench.eviction.pool_replay import Leak
from bench.eviction.recordings import recorded, recordings
from bench.eviction.report import (
    BASELINE,
    POLICY,
    Report,
    ScoreTrace,
    cost_table,
    goals_of,
    goals_table,
    rows_of,
    rows_table,
    score_trace,
    server_table,
)
from bench.eviction.scenarios import SCENARIOS, Scenario
from bench.eviction.schedule import PoolTooSmall
from bench.eviction.servers import bounds_of, rows_and_goals, run_servers
from bench.logits_cache.client import BenchError
from bench.logits_cache.machine import public_command
from bench.report_file import can_plot, how_made, positive
from hive.server.server_process import ServerDied

MODULE = "bench.eviction"
COST, RECORDED, SERVER = "cost", "rtl", "server"
PARTS = (*SCENARIOS, RECORDED, COST, SERVER)
SERVER_POLICIES, QUICK_SERVER_POLICIES = ("lru", "paper", "density"), ("lru", "density")
SEEDS, QUICK_SEEDS = 10, 3
COST_TURNS, QUICK_COST_TURNS = 9, 3
SCORED = ("A", "B", "D", "E")
"""Scenarios whose agents' scores are kept."""


class Settings(NamedTuple):
    """What a run is asked for."""

    scenarios: Sequence[Scenario]
    policies: Sequence[str]
    seeds: int
    sweep: bool
    """Whether the pools for the curves are replayed, too."""
    cost_turns: int
    """0: leave the cost out."""
    served: Scenario | None
    """What is replayed on servers."""
    server_policies: Sequence[str]
    repeats: int
    """Servers for each policy."""
    server_flags: Sequence[str]
    workers: int


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m {MODULE}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="write the report here")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="for the plots (default: beside FILE)")
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"{QUICK_SEEDS} seeds instead of {SEEDS}, no sweep over pools, fewer turns of the cost, and one server "
        f"for each of {', '.join(QUICK_SERVER_POLICIES)} instead of two for each of {', '.join(SERVER_POLICIES)}",
    )
    parser.add_argument("--seeds", type=positive, metavar="N", help="so many seeds")
    parser.add_argument(
        "--only",
        choices=PARTS,
        nargs="+",
        default=PARTS,
        metavar="PART",
        help=f"of {', '.join(PARTS)}",
    )
    parser.add_argument(
        "--trace",
        type=Path,
        action="append",
        metavar="FILE",
        help=f"a recorded run to replay as part of {RECORDED} (repeatable; default: those of the bench)",
    )
    parser.add_argument(
        "--policies",
        choices=POLICIES,
        nargs="+",
        default=MAIN_POLICIES,
        metavar="POLICY",
        help=f"of {', '.join(POLICIES)}; {BASELINE} is always replayed",
    )
    parser.add_argument(
        "--server-trace",
        type=Path,
        metavar="FILE",
        help="the recorded run for the servers (default: the shortest with --quick, else the longest)",
    )
    parser.add_argument(
        "--server-pool",
        type=positive,
        metavar="TOKENS",
        help="their pool (default: the middle one of the trace)",
    )
    parser.add_argument(
        "--server-flags",
        type=shlex.split,
        default=[],
        metavar="FLAGS",
        help="further flags of the servers, in one word: '--model-path ...' (default: the embedded model)",
    )
    parser.add_argument(
        "--repeats", type=positive, metavar="N", help="servers for each policy (default: 2, quick: 1)"
    )
    parser.add_argument("--workers", type=positive, default=2, metavar="N", help="processes (default: 2)")
    return parser


def settings_of(options: argparse.Namespace) -> Settings:
    """The options, with what --quick stands for.

    Raises:
        ValueError: when a file is no trace.
        OSError: when it cannot be read.
    """
    quick: bool = options.quick
    scenarios = [SCENARIOS[name] for name in SCENARIOS if name in options.only]
    if RECORDED in options.only:
        scenarios += [recorded(path) for path in options.trace or recordings()]
    turns = QUICK_COST_TURNS if quick else COST_TURNS
    served = None
    if SERVER in options.only:
        path = options.server_trace or (min if quick else max)(
            recordings(), key=lambda path: path.stat().st_size
        )
        served = recorded(path)
        pool = options.server_pool or served.pools[len(served.pools) // 2]
        served = dataclasses.replace(served, pools=(pool,))
    policies = list(dict.fromkeys((BASELINE, *options.policies)))
    return Settings(
        scenarios=scenarios,
        policies=policies,
        seeds=options.seeds or (QUICK_SEEDS if quick else SEEDS),
        sweep=not quick,
        cost_turns=turns if COST in options.only else 0,
        served=served,
        server_policies=[
            name for name in (QUICK_SERVER_POLICIES if quick else SERVER_POLICIES) if name in policies
        ],
        repeats=options.repeats or (1 if quick else 2),
        server_flags=options.server_flags,
        workers=options.workers,
    )


def measure(settings: Settings, command: str, console: Console) -> Report:
    """Everything that is asked for."""
    began = time.monotonic()
    # Before anything that takes minutes: this says whether the pool of the servers is large enough.
    bounds = {} if settings.served is None else bounds_of(settings.served, settings.served.pools[0])
    cost: list[CostRow] = []
    if settings.cost_turns:
        # Alone on the machine: this is about time.
        console.print("cost of evicting")
        # What else a policy is told does not change what it does.
        timed = [
            BASELINE,
            *(name for name in settings.policies if name in MAIN_POLICIES and POLICIES[name].hive),
        ]
        cost = measure_cost(timed, settings.cost_turns)
    policies = [*settings.policies, CLAIRVOYANT]
    work = [
        Work(scenario, seed, scenario.all_pools if settings.sweep else scenario.pools, policies)
        for seed in range(settings.seeds)
        for scenario in settings.scenarios
        if seed == 0 or not scenario.recorded
    ]
    results: list[Replayed] = []
    for done, part in enumerate(replayed(work, settings.workers), start=1):
        console.print(f"replayed {part[0].scenario}, seed {part[0].seed} ({done} of {len(work)})")
        results += part
    rows = rows_of(settings.scenarios, results)
    failed: str | None = None
    goals = goals_of(rows, settings.scenarios)
    if settings.served is not None:
        scenario, (pool,) = settings.served, settings.served.pools
        try:
            runs = run_servers(
                scenario,
                pool,
                list(bounds),
                settings.server_policies,
                settings.repeats,
                settings.server_flags,
                console.print,
            )
        except (ServerDied, BenchError) as error:
            failed = str(error)
        else:
            server_rows, server_goals = rows_and_goals(scenario, pool, bounds, runs)
            rows += server_rows
            goals += server_goals
    return Report(
        **how_made(command, began),
        scenarios={scenario.name: scenario.what for scenario in settings.scenarios},
        goals=goals,
        rows=rows,
        cost=cost,
        scores=_scores(settings.scenarios, results),
        failed=failed,
    )


def _scores(scenarios: Sequence[Scenario], results: Sequence[Replayed]) -> list[ScoreTrace]:
    """The scores of agents, in the first seed with the largest pool."""
    pools = {
        scenario.name: scenario.pools[-1]
        for scenario in scenarios
        if scenario.recorded or scenario.name in SCORED
    }
    kept = [
        result
        for result in results
        if (result.policy, result.seed) == (POLICY, 0) and pools.get(result.scenario) == result.pool
    ]
    order = list(pools)
    kept.sort(key=lambda result: order.index(result.scenario))
    return [score_trace(result, POLICIES[POLICY].window.round_requests) for result in kept]


def main(argv: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(argv)
    # In a file the tables shall have the room that they need.
    console = Console(width=None if sys.stdout.isatty() else 140)
    try:
        settings = settings_of(options)
    except (ValueError, OSError) as error:
        raise SystemExit(f"bench: {error}") from None
    try:
        report = measure(settings, public_command(sys.argv[1:] if argv is None else argv, MODULE), console)
    except (Leak, PoolTooSmall) as error:
        raise SystemExit(f"bench: {error}") from None
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(report.model_dump_json(indent=1) + "\n")
    replays = [row for row in report.rows if row.source == "trace"]
    served = [row for row in report.rows if row.source == "server"]
    if replays:
        console.print(rows_table(replays))
    if served:
        console.print(server_table(served))
    if report.cost:
        console.print(cost_table(report.cost))
    if report.goals:
        console.print(goals_table(report.goals))
    if can_plot(console):
        from bench.eviction.plots import write_plots

        folder = options.plots or options.json.parent
        for path in write_plots(report.rows, report.scores, folder, options.json.stem):
            console.print(f"plot: {path}", highlight=False)
    console.print(f"report: {options.json} ({report.seconds:.0f} s)", highlight=False)
    if report.failed is not None:
        raise SystemExit(f"bench: {report.failed}")


if __name__ == "__main__":
    main()
