"""``python -m bench.kv_segments --json FILE [--quick]``: what reuse of messages' KV saves, and what it costs.

``speed``: Tree of Thoughts, parallel and iterative debate, choreographed (messages keep the KV that they were made
with) and as prompts that are put together from texts: with exact radix caching (``baseline``, on the same server;
``stock``, the same on stock SGLang; ``warm``, the same where every prompt was sent before, which is what reuse of exact
prefixes could reach) and without any cache (``naive``). Arms take turns on each problem, each from cold caches, and all
decode as many tokens. Texts are real ones, or, with ``--random-tokens`` for a model's geometry without
weights, random ids of given lengths. The defaults of those are meant to be like the MATH problems of the paper: system
prompts of 200 tokens, problems of 150, solutions of 300 to 500. They are our guess.

``quality``: three agents with private histories read each other's messages, which were encoded elsewhere. Their next 50
tokens are compared, as full distributions, with those of a prompt that is computed as usual.

``--quick`` takes about four minutes on two cores that have nothing else to do.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

import httpx
import torch
from rich.console import Console

from bench.kv_segments.arms import ARM_NAMES, USUAL_ARMS
from bench.kv_segments.client import Client
from bench.kv_segments.distributions import head_of
from bench.kv_segments.encoding import Encoding, RandomTokens, RealText
from bench.kv_segments.quality import CONTEXTS, RECOMPUTE_ALL, QualitySession, correctors
from bench.kv_segments.report import (
    QualitySetting,
    Report,
    SpeedSetting,
    goal_lines,
    goals,
    quality_rows,
    quality_table,
    speed_rows,
    speed_table,
)
from bench.kv_segments.servers import Kind, hive_flags, started
from bench.kv_segments.speed import WORKLOADS, SpeedSession, SpeedSettings, contestants
from bench.kv_segments.town_meeting import NEUTRAL_PREFIX, rounds
from bench.kv_segments.workflows import DEBATERS
from bench.logits_cache.client import BenchError
from bench.logits_cache.machine import public_command
from bench.logits_cache.servers import served_model
from bench.report_file import can_plot, how_made, not_writable, positive
from hive.server.embedded_model import EmbeddedModelError, ensure_embedded_model
from hive.server.server_process import ServerDied
from sglang_patches.cpu_platform import needed as on_cpu

Part = Literal["speed", "quality"]
PARTS: tuple[Part, ...] = get_args(Part)
FAILURES = (BenchError, EmbeddedModelError, FileNotFoundError, ServerDied, httpx.HTTPError)
"""Of servers and of what they serve; anything else is a fault of the bench."""
SHARE = 0.14
"""Of each segment, rounded up to whole tokens: the goal allows for 15% of all of them."""
RESERVE_S = 15.0
"""Kept back where time is limited: ending takes seconds."""
QUICK_CORRECTORS = ("none", "first-k", RECOMPUTE_ALL)
SPEED_SHARE = 0.6
"""Of the time there is, the part that speed gets if quality is to follow."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.kv_segments",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="write the report here")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="for the plots (default: beside FILE)")
    parser.add_argument(
        "--quick", action="store_true", help="short answers, few problems, small workflows, one meeting"
    )
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS), help="only these parts")
    parser.add_argument(
        "--hive-url", metavar="URL", help="a Hive server that runs already (default: start one)"
    )
    parser.add_argument("--stock-url", metavar="URL", help="a stock server that runs already, for arm stock")
    parser.add_argument(
        "--model-path", type=Path, metavar="DIR", help="model of the servers (default: the embedded one)"
    )
    parser.add_argument(
        "--dtype",
        help="of the servers that are started (default: float32 on a CPU, the model's own on a GPU)",
    )
    parser.add_argument("--minutes", type=float, metavar="M", help="begin nothing that would end later")
    parser.add_argument("--seed", type=int, default=0, help="same seed, same problems")
    speed = parser.add_argument_group("speed")
    speed.add_argument("--workloads", choices=WORKLOADS, nargs="+", default=list(WORKLOADS))
    speed.add_argument(
        "--arms",
        choices=ARM_NAMES,
        nargs="+",
        default=list(USUAL_ARMS),
        help="(default: all but warm, which is a bound, and stock, which needs a server of its own)",
    )
    speed.add_argument(
        "--correct",
        nargs="+",
        default=["none"],
        metavar="CORRECTOR",
        help="of the choreographed arm, each an arm of its own (default: none)",
    )
    speed.add_argument("--problems", type=positive, metavar="N", help="(default: 10)")
    speed.add_argument("--repetitions", type=positive, default=1, metavar="N", help="of each problem")
    speed.add_argument("--branches", type=positive, metavar="N", help="of tot (default: 8)")
    speed.add_argument("--votes", type=positive, metavar="N", help="of tot (default: 4)")
    speed.add_argument("--agents", type=positive, default=len(DEBATERS), metavar="N", help="of parallel")
    speed.add_argument("--rounds", type=positive, metavar="N", help="of both debates (default: 3)")
    speed.add_argument(
        "--answer-tokens",
        type=positive,
        nargs=2,
        metavar=("LEAST", "MOST"),
        help="of a message, drawn for each problem (default: 64 64, and 300 500 with --random-tokens)",
    )
    speed.add_argument(
        "--random-tokens",
        type=positive,
        metavar="VOCABULARY",
        help="random ids below VOCABULARY for texts, for servers without a tokenizer",
    )
    speed.add_argument(
        "--system-tokens", type=positive, default=200, metavar="N", help="with --random-tokens"
    )
    speed.add_argument(
        "--problem-tokens", type=positive, default=150, metavar="N", help="with --random-tokens"
    )
    quality = parser.add_argument_group("quality")
    quality.add_argument("--contexts", choices=CONTEXTS, nargs="+", default=list(CONTEXTS))
    quality.add_argument(
        "--correctors",
        nargs="+",
        metavar="CORRECTOR",
        help="none, first-k, blend, blend-BLOCK and recompute-all (default: all)",
    )
    quality.add_argument(
        "--share",
        type=float,
        default=SHARE,
        help=f"that first-k and blend compute again (default: {SHARE:g})",
    )
    quality.add_argument("--block", type=positive, default=32, metavar="TOKENS", help="of blend-BLOCK")
    quality.add_argument(
        "--meetings", type=positive, metavar="N", help=f"of three readers each (default: {rounds()}, all)"
    )
    parser.add_argument("flags", nargs="*", metavar="FLAG", help="more flags of all servers, after --")
    return parser


@dataclass
class _Run:
    """Options made up, and what was measured."""

    options: argparse.Namespace
    began: float
    console: Console
    model: Path
    encoding: Encoding
    speed: SpeedSession | None = None
    quality: QualitySession | None = None
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def deadline(self) -> float | None:
        minutes: float | None = self.options.minutes
        return None if minutes is None else self.began + 60 * minutes - RESERVE_S


def speed_settings(options: argparse.Namespace) -> SpeedSettings:
    """The options, with what ``--quick`` and ``--random-tokens`` stand for."""
    quick: bool = options.quick
    default = (12, 12) if quick else (300, 500) if options.random_tokens else (64, 64)
    low, high = options.answer_tokens or default
    return SpeedSettings(
        workloads=options.workloads,
        problems=options.problems or (2 if quick else 10),
        repetitions=options.repetitions,
        branches=options.branches or (4 if quick else 8),
        votes=options.votes or (2 if quick else 4),
        agents=options.agents,
        rounds=options.rounds or (2 if quick else 3),
        answer_tokens=(low, high),
        seed=options.seed,
        # On two cores it would take as long as what it is for.
        warm_up=not quick,
    )


def main(argv: Sequence[str] | None = None) -> None:
    began = time.monotonic()
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = _parser()
    options = parser.parse_args(arguments)
    _check(parser, options)
    # In a file the tables shall have the room that they need.
    console = Console(width=None if sys.stdout.isatty() else 180)
    try:
        model = options.model_path or ensure_embedded_model()
        run = _Run(options, began, console, model, _encoding(options, model))
        _serve_and_measure(run)
    except FAILURES as error:
        raise SystemExit(f"bench: {str(error) or repr(error)}") from None
    report = _report(run, arguments)
    if not report.rows:
        raise SystemExit(
            "bench: nothing was measured"
            + "".join(f"; {what}: {reason}" for what, reason in report.left_out.items())
        )
    options.json.write_text(report.model_dump_json(indent=1) + "\n")
    if run.speed:
        console.print(speed_table(report))
    if run.quality:
        console.print(quality_table(report))
    for line in goal_lines(report):
        console.print(line, highlight=False)
    for what, reason in report.left_out.items():
        console.print(f"not run: {what}: {reason}", highlight=False, markup=False)
    if can_plot(console):
        from bench.kv_segments.plots import write_plots

        for path in write_plots(report, options.plots or options.json.parent, options.json.stem):
            console.print(f"plot: {path}", highlight=False)
    console.print(f"report: {options.json} ({report.seconds:.0f} s)", highlight=False)


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """End with a sentence where options contradict each other, before anything is started."""
    if problem := not_writable(options.json):
        parser.error(f"--json: {options.json} cannot be written: {problem}")
    if options.answer_tokens and options.answer_tokens[0] > options.answer_tokens[1]:
        parser.error("--answer-tokens: the least is more than the most")
    if options.agents > len(DEBATERS):
        parser.error(f"--agents: there are {len(DEBATERS)}")
    if not 0 < options.share <= 1:
        parser.error("--share must be above 0 and at most 1")
    if (options.meetings or 0) > rounds():
        parser.error(f"--meetings: there are texts for {rounds()}")
    known = correctors(options.share, options.block)
    for flag, names in (("--correctors", options.correctors), ("--correct", options.correct)):
        if unknown := [name for name in names or () if name not in known]:
            parser.error(f"{flag}: {unknown[0]} is none of {', '.join(known)}")
    if "baseline" not in options.arms and "speed" in options.only:
        parser.error("--arms: without the baseline there is nothing to compare with")
    if options.random_tokens and options.only == ["quality"]:
        parser.error("--random-tokens: quality needs texts")


def _encoding(options: argparse.Namespace, model: Path) -> Encoding:
    if options.random_tokens:
        return RandomTokens(options.random_tokens, options.system_tokens, options.problem_tokens)
    return RealText(model)


def _serve_and_measure(run: _Run) -> None:
    """Both parts, on servers that are given or started for them.

    Raises:
        BenchError: when a server does not do as it is asked.
        ServerDied: when one does not come up.
    """
    options = run.options
    parts: list[Part] = [part for part in PARTS if part in options.only]
    if options.random_tokens and "quality" in parts:
        parts.remove("quality")
        run.left_out["quality"] = "it needs texts"
    urls: dict[Kind, str] = {}
    if options.hive_url:
        urls["hive"] = options.hive_url.rstrip("/")
    if options.stock_url:
        urls["stock"] = options.stock_url.rstrip("/")
    wanted: list[Kind] = []
    if "hive" not in urls:
        wanted.append("hive")
    if "speed" in parts and "stock" in options.arms and "stock" not in urls:
        wanted.append("stock")
    flags = [*(["--dtype", dtype] if (dtype := dtype_of(options)) else []), *options.flags]
    of_hive = hive_flags(
        hidden_states="quality" in parts,
        neutral_prefix=NEUTRAL_PREFIX if "quality" in parts else None,
    )
    with contextlib.ExitStack() as stack:
        if wanted:
            run.console.print(f"starting {' and '.join(wanted)}")
            urls |= stack.enter_context(started(wanted, run.model, flags, of_hive, on_cpu()))
        for url in urls.values():
            served_model(url)
        asyncio.run(_measure(run, parts, urls))


def dtype_of(options: argparse.Namespace) -> str | None:
    """What the servers are told to compute in; None where that is left to them, or they run already."""
    if options.hive_url:
        return None
    dtype: str | None = options.dtype
    return "float32" if dtype is None and on_cpu() else dtype


async def _measure(run: _Run, parts: Sequence[Part], urls: dict[Kind, str]) -> None:
    options, deadline = run.options, run.deadline
    async with contextlib.AsyncExitStack() as stack:
        clients = {kind: await stack.enter_async_context(Client(url)) for kind, url in urls.items()}
        known = correctors(options.share, options.block)
        if "speed" in parts:
            run.speed = SpeedSession(speed_settings(options), run.console)
            until = deadline
            if deadline is not None and "quality" in parts:
                now = time.monotonic()
                until = now + SPEED_SHARE * (deadline - now)
            crew = contestants(
                options.arms,
                {name: known[name] for name in options.correct},
                clients["hive"],
                clients.get("stock"),
                run.encoding,
            )
            await run.speed.run(crew, until)
        if "quality" in parts:
            names = options.correctors or (QUICK_CORRECTORS if options.quick else list(known))
            run.quality = QualitySession(
                client=clients["hive"],
                encode=RealText(run.model),
                head=head_of(run.model),
                contexts=options.contexts,
                correctors={name: known[name] for name in names},
                seed=options.seed,
                console=run.console,
            )
            await _attempt_quality(run, run.quality, deadline)


async def _attempt_quality(run: _Run, session: QualitySession, deadline: float | None) -> None:
    """What was measured before is worth keeping, whatever comes of this."""
    meetings = run.options.meetings or (1 if run.options.quick else rounds())
    threads = torch.get_num_threads()
    # The cores are the server's. With one thread, comparing takes milliseconds; threads that wait for each other while
    # it works take the more of its time.
    torch.set_num_threads(1)
    try:
        await session.run(meetings, deadline)
    except (BenchError, httpx.HTTPError) as error:
        session.readings.clear()
        session.left_out["quality"] = str(error) or repr(error)
    finally:
        torch.set_num_threads(threads)


def _report(run: _Run, arguments: Sequence[str]) -> Report:
    options = run.options
    configuration = json.loads((run.model / "config.json").read_text())
    layers, hidden = configuration.get("num_hidden_layers"), configuration.get("hidden_size")
    dtype = dtype_of(options)
    rows = [
        *speed_rows(run.speed.turns if run.speed else []),
        *quality_rows(run.quality.readings if run.quality else {}),
    ]
    made = how_made(public_command(arguments, "bench.kv_segments"), run.began)
    settings = run.speed.settings if run.speed else None
    left_out = dict(run.left_out)
    for session in (run.speed, run.quality):
        left_out |= session.left_out if session else {}
    return Report(
        **made,
        model=run.model.name,
        layers=layers,
        hidden=hidden,
        dtype=dtype,
        seed=options.seed,
        speed=None
        if settings is None
        else SpeedSetting(
            tokens="random" if options.random_tokens else "text",
            problems=settings.problems,
            repetitions=settings.repetitions,
            branches=settings.branches,
            votes=settings.votes,
            agents=settings.agents,
            rounds=settings.rounds,
            answer_tokens=settings.answer_tokens,
            system_tokens=options.system_tokens if options.random_tokens else None,
            problem_tokens=options.problem_tokens if options.random_tokens else None,
        ),
        quality=None
        if run.quality is None
        else QualitySetting(
            rounds=len({reading.round for some in run.quality.readings.values() for reading in some}),
            share=options.share,
            block=options.block,
            neutral_prefix=None if options.hive_url else NEUTRAL_PREFIX,
        ),
        left_out=left_out,
        goals=goals(rows, gpu=made["machine"]["kind"] == "gpu", layers=layers, hidden=hidden, dtype=dtype),
        rows=rows,
    )


if __name__ == "__main__":
    main()
