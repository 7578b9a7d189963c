"""``python -m bench.peers --json FILE [--quick]``: what Hive is worth, beside what people use without it.

The same tasks by the same rules: on Hive, on stock SGLang with LRU, and on SGLang with NGRAM speculative decoding
(GPU only); and, for the searches, written by hand on asyncio and on LangGraph against stock SGLang, with a request for
each sample or one with n=k for all of them. Blocks of tasks are small, all arms take their turn in each of them, in
rotating order, and every turn begins with cold caches.

``tot``, ``mcts`` and ``best_of_n`` are Game of 24 from prompt to solution, by the trained proposer and valuer. ``rtl``
is sessions of repairs side by side, of designs that the trained Patcher was never taught, on servers of their own,
whose KV pool holds about half of what the sessions' agents would like to keep. ``--quick`` takes about eight minutes
on two cores.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.game24.methods import Shape
from bench.harness.client import BenchError
from bench.harness.command import Command, positive, temperature
from bench.harness.servers import FAILURES, served_model
from bench.peers.arms import (
    ARM_NAMES,
    KINDS,
    OPTIONAL,
    SERVERS,
    WORKLOADS,
    ArmName,
    Kind,
    WorkloadName,
    arms_of,
)
from bench.peers.report import Report, Setting, ratios_table, rows_table
from bench.peers.servers import Wanted, running
from bench.peers.session import Session, Settings
from bench.traces.pool import pool_of_repairs
from examples.rtl_repair.tools import ToolsMissing, require_tools
from hive.server.embedded_model import ensure_embedded_model
from hive.server.roles import UnfitAdapter, lora_flags
from sglang_patches.cpu_platform import needed as on_cpu

QUICK_MINUTES = 8.0
REPAIRS_SHARE = 0.5
"""Of the time there is, the part that the repairs and their servers get."""
RESERVE_S = 20.0
"""Kept back where time is limited: ending takes seconds."""


def _parser() -> Command:
    shape = Shape()
    quick = "smaller searches, and as many blocks as fit into eight minutes"
    parser = Command("bench.peers", __doc__, quick=quick, plots=True)
    option, several = parser.option, parser.several
    several("--only", WORKLOADS, "only these", list(WORKLOADS))
    about = f"only these (default: all but {', '.join(arm for arm in ARM_NAMES if arm in OPTIONAL)})"
    several("--arms", ARM_NAMES, about, [arm for arm in ARM_NAMES if arm not in OPTIONAL])
    for kind in KINDS:
        option(f"--{kind}-url", str, "URL", "a server that runs already (default: start one)")
    option("--puzzles", positive, "N", "of Game of 24's test set (default: 40)")
    option("--at-once", positive, "N", "puzzles side by side, a block (default: 4)")
    option("--branching", positive, "N", f"proposals for a position (default: {shape.branching})")
    option("--breadth", positive, "N", f"positions that tot keeps (default: {shape.breadth})")
    option("--votes", positive, "N", f"for a position (default: {shape.votes})")
    option("--temperature", temperature, "T", f"of proposals (default: {shape.temperature:g})")
    option("--sessions", positive, "N", "of rtl, at once", default=4)
    option("--patches", positive, "N", "of a session in a block (default: 6)")
    option("--lookups", positive, "N", "looks at things before each patch (default: 2)")
    option("--repair-blocks", positive, "N", "of rtl (default: 3)")
    option("--pool", positive, "TOKENS", "of rtl (default: 55%% of the hot working set)")
    about = (
        "serve this model with the adapters in its folder roles, as bench.grown_model makes it (default: the "
    )
    option("--model-path", Path, "DIR", about + "embedded model)")
    option("--minutes", float, "M", "begin no block that would end later")
    option("--seed", int, about="same seed, same tasks", default=0)
    parser.server_flags()
    return parser


def settings_of(options: argparse.Namespace) -> Settings:
    """The options, with what ``--quick`` stands for."""
    quick: bool = options.quick
    default = Shape(branching=3, breadth=2) if quick else Shape()
    return Settings(
        shape=Shape(
            options.branching or default.branching,
            options.breadth or default.breadth,
            options.votes or default.votes,
            options.temperature or default.temperature,
            # Proposals without replacement are an arm of their own.
            distinct=False,
        ),
        puzzles=options.puzzles or (8 if quick else 40),
        at_once=options.at_once or (2 if quick else 4),
        sessions=options.sessions,
        patches=options.patches or (1 if quick else 6),
        lookups=options.lookups or (1 if quick else 2),
        repair_blocks=options.repair_blocks or (1 if quick else 3),
        seed=options.seed,
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = _parser()
    run = parser.run(argv)
    options, console = run.options, run.console
    settings, deadline = settings_of(options), run.deadline(RESERVE_S, QUICK_MINUTES)
    session = Session(settings, console)
    chosen, session.left_out = _chosen(options.only, options.arms, options.ngram_url)
    if not chosen:
        reasons = "".join(f"; {arm}: {reason}" for arm, reason in session.left_out.items())
        parser.error(f"none of the --arms can be run here with --only {' '.join(options.only)}{reasons}")
    given = {kind: url.rstrip("/") for kind in KINDS if (url := getattr(options, f"{kind}_url"))}
    games: dict[WorkloadName, list[ArmName]] = {
        workload: arms for workload, arms in chosen.items() if workload != "rtl"
    }
    repairs: dict[WorkloadName, list[ArmName]] = {
        workload: arms for workload, arms in chosen.items() if workload == "rtl"
    }
    games_deadline = deadline
    if deadline is not None and repairs and games:
        games_deadline = deadline - REPAIRS_SHARE * (deadline - run.began)
    model = ""
    pool: int | None = None
    of_repairs: Sequence[str] = ()
    try:
        if repairs:
            require_tools()
            if not _kinds(repairs) <= given.keys():
                pool = options.pool or pool_of_repairs(settings.patches)
                of_repairs = ("--max-total-tokens", str(pool))
    except (ToolsMissing, ValueError) as error:
        raise SystemExit(f"bench: {error}") from None
    for part, flags, until in ((games, (), games_deadline), (repairs, of_repairs, deadline)):
        try:
            if part:
                model = _measure(session, part, given, flags, until, options)
        except (*FAILURES, UnfitAdapter) as error:
            reason = str(error) or repr(error)
            if not session.rows():
                raise SystemExit(f"bench: {reason}") from None
            # The end of a server's log is for people; what was measured before is in the report.
            console.print(reason, highlight=False, markup=False)
            session.left_out[", ".join(part)] = reason.partition("\n")[0].rstrip(":")
    report = Report(
        **run.how_made(),
        model=model,
        seed=settings.seed,
        setting=Setting(
            shape=settings.shape,
            puzzles_at_once=settings.at_once,
            sessions=settings.sessions,
            patches=settings.patches,
            lookups=settings.lookups,
            pool=pool,
        ),
        left_out=session.left_out,
        rows=session.rows(),
        ratios=session.ratios(run.command),
    )

    def plot(folder: Path, stem: str) -> list[Path]:
        from bench.peers.plots import write_plot

        return [write_plot(report, folder, stem)]

    left_out = [f"not run: {what}: {reason}" for what, reason in report.left_out.items()]
    run.finish(report, [rows_table(report), ratios_table(report), *left_out], plot)


def _chosen(
    workloads: Sequence[WorkloadName], arms: Sequence[ArmName], ngram_url: str | None
) -> tuple[dict[WorkloadName, list[ArmName]], dict[str, str]]:
    """The arms of each workload, and those that cannot be run here."""
    cannot: dict[ArmName, str] = {}
    if on_cpu() and not ngram_url:
        cannot["ngram"] = "SGLang's speculative decoding does not run on a CPU"
    if importlib.util.find_spec("langgraph") is None:
        reason = "langgraph is not installed (it comes with hive[bench])"
        cannot |= {"langgraph": reason, "langgraph_on_hive": reason}
    chosen = {
        workload: arms_of(workload, [arm for arm in arms if arm not in cannot])
        for workload in WORKLOADS
        if workload in workloads
    }
    chosen = {workload: some for workload, some in chosen.items() if some}
    return chosen, {arm: reason for arm, reason in cannot.items() if arm in arms}


def _kinds(part: Mapping[WorkloadName, Sequence[ArmName]]) -> set[Kind]:
    """Whom the arms of some workloads ask."""
    return {SERVERS[arm] for arms in part.values() for arm in arms}


def _measure(
    session: Session,
    part: Mapping[WorkloadName, Sequence[ArmName]],
    given: Mapping[Kind, str],
    flags: Sequence[str],
    deadline: float | None,
    options: argparse.Namespace,
) -> str:
    """Measure some workloads on servers that are given or started for them; the name of the model.

    Raises `BenchError` when there is no server at all.
    """
    needed = _kinds(part)
    wanted = [
        Wanted(
            kind,
            # The same adapters by the same flags for all of them.
            ("--enable-metrics", *lora_flags(on_cpu(), options.model_path), *flags, *options.flags),
        )
        for kind in KINDS
        if kind in needed and kind not in given
    ]
    if wanted:
        session.console.print(f"starting {', '.join(each.kind for each in wanted)}")
    with running(wanted, options.model_path or ensure_embedded_model(), on_cpu()) as (started, died):
        if "hive" in died:
            raise died["hive"]
        for kind, error in died.items():
            # Behind the first line is the end of the server's log: for people, on the terminal.
            session.console.print(str(error), highlight=False, markup=False)
            session.left_out[f"{kind} server"] = str(error).partition("\n")[0].rstrip(":")
        urls = {kind: url for kind, url in {**given, **started}.items() if kind in needed}
        if not urls:
            raise BenchError("no server came up")
        asyncio.run(session.run(urls, part, deadline))
        return served_model(next(iter(urls.values())))


if __name__ == "__main__":
    main()
