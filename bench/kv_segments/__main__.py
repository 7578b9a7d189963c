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
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

import httpx
import torch

from bench.harness.client import BenchError, Client
from bench.harness.command import Command, Run, positive
from bench.harness.servers import served_model
from bench.kv_segments.arms import ARM_NAMES, USUAL_ARMS
from bench.kv_segments.distributions import head_of
from bench.kv_segments.encoding import Encoding, RandomTokens, RealText
from bench.kv_segments.quality import CONTEXTS, RECOMPUTE_ALL, QualitySession, correctors
from bench.kv_segments.report import (
    QualitySetting,
    Report,
    SpeedSetting,
    quality_rows,
    quality_table,
    speed_rows,
    speed_table,
)
from bench.kv_segments.servers import Kind, hive_flags, started
from bench.kv_segments.speed import WORKLOADS, SpeedSession, SpeedSettings, contestants
from bench.kv_segments.town_meeting import NEUTRAL_PREFIX, rounds
from examples.choreography.workflows import DEBATERS
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
LENGTHS = ("system_tokens", "problem_tokens")
SPEED_SHARE = 0.6
"""Of the time there is, the part that speed gets if quality is to follow."""


def _parser() -> Command:
    quick = "short answers, few problems, small workflows, one meeting"
    parser = Command("bench.kv_segments", __doc__, quick=quick, plots=True)
    option, several = parser.option, parser.several
    several("--only", PARTS, "only these parts", list(PARTS))
    option("--hive-url", str, "URL", "a Hive server that runs already (default: start one)")
    option("--stock-url", str, "URL", "a stock server that runs already, for arm stock")
    option("--model-path", Path, "DIR", "model of the servers (default: the embedded one)")
    about = "of the servers that are started (default: float32 on a CPU, the model's own on a GPU)"
    option("--dtype", str, about=about)
    option("--minutes", float, "M", "begin nothing that would end later")
    option("--seed", int, about="same seed, same problems", default=0)
    several("--workloads", WORKLOADS, "of speed (default: all)", list(WORKLOADS))
    about = "of speed (default: all but warm, which is a bound, and stock, which needs a server of its own)"
    several("--arms", ARM_NAMES, about, list(USUAL_ARMS))
    about = "of the choreographed arm, each an arm of its own (default: none)"
    option("--correct", str, "CORRECTOR", about, nargs="+", default=["none"])
    option("--problems", positive, "N", "of speed (default: 10)")
    option("--repetitions", positive, "N", "of each problem", default=1)
    option("--branches", positive, "N", "of tot (default: 8)")
    option("--votes", positive, "N", "of tot (default: 4)")
    option("--agents", positive, "N", "of parallel", default=len(DEBATERS))
    option("--rounds", positive, "N", "of both debates (default: 3)")
    about = "of a message, drawn for each problem (default: 64 64, and 300 500 with --random-tokens)"
    parser.add_argument("--answer-tokens", type=positive, nargs=2, metavar=("LEAST", "MOST"), help=about)
    about = "random ids below VOCABULARY for texts, for servers without a tokenizer"
    option("--random-tokens", positive, "VOCABULARY", about)
    option("--system-tokens", positive, "N", "with --random-tokens", default=200)
    option("--problem-tokens", positive, "N", "with --random-tokens", default=150)
    several("--contexts", CONTEXTS, "of quality (default: all)", list(CONTEXTS))
    about = "of quality: none, first-k, blend, blend-BLOCK and recompute-all (default: all)"
    option("--correctors", str, "CORRECTOR", about, nargs="+")
    option("--share", float, about="that first-k and blend compute again", default=SHARE)
    option("--block", positive, "TOKENS", "of blend-BLOCK", default=32)
    option("--meetings", positive, "N", f"of quality, of three readers each (default: {rounds()}, all)")
    parser.server_flags()
    return parser


@dataclass
class _Measured:
    run: Run
    model: Path
    encoding: Encoding
    speed: SpeedSession | None = None
    quality: QualitySession | None = None
    left_out: dict[str, str] = field(default_factory=dict)


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
    parser = _parser()
    run = parser.run(argv)
    options = run.options
    _check(parser, options)
    try:
        model = options.model_path or ensure_embedded_model()
        measured = _Measured(run, model, _encoding(options, model))
        _serve_and_measure(measured)
    except FAILURES as error:
        raise SystemExit(f"bench: {str(error) or repr(error)}") from None
    report = _report(measured)
    if not report.rows:
        raise SystemExit(
            "bench: nothing was measured"
            + "".join(f"; {what}: {reason}" for what, reason in report.left_out.items())
        )

    def plot(folder: Path, stem: str) -> list[Path]:
        from bench.kv_segments.plots import write_plots

        return write_plots(report, folder, stem)

    tables = [
        *([speed_table(report)] if measured.speed else []),
        *([quality_table(report)] if measured.quality else []),
    ]
    left_out = [f"not run: {what}: {reason}" for what, reason in report.left_out.items()]
    run.finish(report, [*tables, *left_out], plot)


def _check(parser: Command, options: argparse.Namespace) -> None:
    """End with a sentence where options contradict each other, before anything is started."""
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


def _serve_and_measure(measured: _Measured) -> None:
    """Both parts, on servers that are given or started for them."""
    options = measured.run.options
    parts: list[Part] = [part for part in PARTS if part in options.only]
    if options.random_tokens and "quality" in parts:
        parts.remove("quality")
        measured.left_out["quality"] = "it needs texts"
    given: dict[Kind, str | None] = {"hive": options.hive_url, "stock": options.stock_url}
    urls = {kind: url.rstrip("/") for kind, url in given.items() if url}
    wanted: list[Kind] = [] if "hive" in urls else ["hive"]
    if "speed" in parts and "stock" in options.arms and "stock" not in urls:
        wanted.append("stock")
    flags = [*(["--dtype", dtype] if (dtype := dtype_of(options)) else []), *options.flags]
    of_hive = hive_flags(
        hidden_states="quality" in parts,
        neutral_prefix=NEUTRAL_PREFIX if "quality" in parts else None,
    )
    with contextlib.ExitStack() as stack:
        if wanted:
            measured.run.console.print(f"starting {' and '.join(wanted)}")
            urls |= stack.enter_context(started(wanted, measured.model, flags, of_hive, on_cpu()))
        for url in urls.values():
            served_model(url)
        asyncio.run(_measure(measured, parts, urls))


def dtype_of(options: argparse.Namespace) -> str | None:
    """The data type that servers are set to; None where that is left to them, or they run already."""
    if options.hive_url:
        return None
    dtype: str | None = options.dtype
    return "float32" if dtype is None and on_cpu() else dtype


async def _measure(measured: _Measured, parts: Sequence[Part], urls: dict[Kind, str]) -> None:
    options, deadline = measured.run.options, measured.run.deadline(RESERVE_S)
    async with contextlib.AsyncExitStack() as stack:
        clients = {kind: await stack.enter_async_context(Client(url)) for kind, url in urls.items()}
        known = correctors(options.share, options.block)
        if "speed" in parts:
            measured.speed = SpeedSession(speed_settings(options), measured.run.console)
            until = deadline
            if deadline is not None and "quality" in parts:
                now = time.monotonic()
                until = now + SPEED_SHARE * (deadline - now)
            crew = contestants(
                options.arms,
                {name: known[name] for name in options.correct},
                clients["hive"],
                clients.get("stock"),
                measured.encoding,
            )
            await measured.speed.run(crew, until)
        if "quality" in parts:
            names = options.correctors or (QUICK_CORRECTORS if options.quick else list(known))
            measured.quality = QualitySession(
                client=clients["hive"],
                encode=RealText(measured.model),
                head=head_of(measured.model),
                contexts=options.contexts,
                correctors={name: known[name] for name in names},
                seed=options.seed,
                console=measured.run.console,
            )
            await _attempt_quality(measured.run.options, measured.quality, deadline)


async def _attempt_quality(
    options: argparse.Namespace, session: QualitySession, deadline: float | None
) -> None:
    """What was measured before is worth keeping, whatever comes of this."""
    meetings = options.meetings or (1 if options.quick else rounds())
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


def _report(measured: _Measured) -> Report:
    options = measured.run.options
    configuration = json.loads((measured.model / "config.json").read_text())
    layers, hidden = configuration.get("num_hidden_layers"), configuration.get("hidden_size")
    dtype = dtype_of(options)
    speed, quality = measured.speed, measured.quality
    readings = quality.readings if quality else {}
    rows = [*speed_rows(speed.turns if speed else []), *quality_rows(readings)]
    made = measured.run.how_made()
    lengths = {name: getattr(options, name) if options.random_tokens else None for name in LENGTHS}
    tokens = "random" if options.random_tokens else "text"
    return Report(
        **made,
        model=measured.model.name,
        layers=layers,
        hidden=hidden,
        dtype=dtype,
        seed=options.seed,
        speed=SpeedSetting(tokens=tokens, **speed.settings.model_dump(), **lengths) if speed else None,
        quality=QualitySetting(
            rounds=len({reading.round for some in readings.values() for reading in some}),
            share=options.share,
            block=options.block,
            neutral_prefix=None if options.hive_url else NEUTRAL_PREFIX,
        )
        if quality
        else None,
        left_out={
            **measured.left_out,
            **(speed.left_out if speed else {}),
            **(quality.left_out if quality else {}),
        },
        rows=rows,
    )


if __name__ == "__main__":
    main()
