"""``python -m bench.logits_cache --json FILE [--quick]``: what the Logits Cache is worth.

Starts a Hive server and a stock SGLang server with the embedded model, or measures servers that run already
(``--hive-url``, ``--stock-url``, ``--ngram-url``). ``--quick`` takes at most ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import aiohttp
from rich.console import Console

from bench.logits_cache.client import BenchError
from bench.logits_cache.machine import public_command
from bench.logits_cache.report import summary_lines, table
from bench.logits_cache.servers import served_model, started
from bench.logits_cache.session import Session, Settings
from bench.logits_cache.toll import toll_table
from bench.logits_cache.workloads import DRAWS, WORKLOADS, Prompts, Variant, game24_prompts, random_prompts
from bench.report_file import can_plot
from hive.server.embedded_model import ensure_embedded_model
from hive.server.server_process import ServerDied
from sglang_patches.cpu_platform import needed as on_cpu

PARTS = (*WORKLOADS, "overhead", "micro")
ONLY = (*PARTS, "short_extends", "toll")
"""What is measured only where it is asked for comes last; the toll reads the CPU time of servers of this machine."""
THE_MODEL = "none"
"""Stands for the model itself where adapters are named."""
QUICK_MINUTES = 10.0
RESERVE_S = 45.0
"""Kept back where time is limited: a block may take longer than planned, and ending takes seconds."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.logits_cache",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="write the report here")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="for the plots (default: beside FILE)")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="T 0 and 0.7, 100 tokens, as many states as fit into ten minutes",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        metavar="M",
        help="choose the numbers of states so that the run takes this long",
    )
    parser.add_argument("--hive-url", metavar="URL", help="a running Hive server (default: start one)")
    parser.add_argument(
        "--stock-url", metavar="URL", help="a running stock SGLang server (default: start one)"
    )
    parser.add_argument("--ngram-url", metavar="URL", help="a running SGLang server that speculates by NGRAM")
    parser.add_argument("--ngram", action="store_true", help="start an NGRAM server, too (needs a GPU)")
    parser.add_argument(
        "--model-path",
        type=Path,
        metavar="DIR",
        help="model of the servers, whose tokenizer.json cuts the prompts (default: the embedded model)",
    )
    parser.add_argument(
        "--random-prompts",
        type=int,
        metavar="VOCABULARY",
        help="prompts of random token ids below VOCABULARY, for servers without a tokenizer",
    )
    parser.add_argument("--only", choices=ONLY, nargs="+", default=list(PARTS), help="only these parts")
    parser.add_argument("--temperatures", type=float, nargs="+", metavar="T")
    parser.add_argument("--sharpnesses", type=float, nargs="+", metavar="S", help="divisors of temperature 1")
    parser.add_argument("--concurrencies", type=int, nargs="+", default=[1, 10], metavar="C")
    parser.add_argument("--overhead-concurrencies", type=int, nargs="+", metavar="C")
    parser.add_argument(
        "--overhead-draws",
        choices=list(DRAWS),
        nargs="+",
        default=["plain"],
        metavar="DRAW",
        help="how requests of the record overhead draw: plain, at a temperature; top_p, 0.95; top_k, 50",
    )
    parser.add_argument(
        "--adapters",
        nargs="+",
        default=[THE_MODEL],
        metavar="NAME",
        help="LoRA adapters that answer in overhead and short_extends, each in turn; none is the model itself",
    )
    parser.add_argument(
        "--extends-at-once",
        type=int,
        nargs="+",
        default=[1, 4, 8],
        metavar="C",
        help="requests of short_extends",
    )
    parser.add_argument("--states", type=int, default=100, metavar="N", help="states per block, at the most")
    parser.add_argument(
        "--samples", type=int, default=8, metavar="N", help="per state of resample and sharpened"
    )
    parser.add_argument("--search-samples", type=int, default=16, metavar="N", help="per state of search")
    parser.add_argument("--tokens", type=int, metavar="N", help="output length of resample and sharpened")
    parser.add_argument("--overhead-tokens", type=int, metavar="N", help="output length of record overhead")
    parser.add_argument(
        "flags", nargs="*", metavar="FLAG", help="more flags of the servers that are started, after --"
    )
    return parser


def settings_of(options: argparse.Namespace, began: float, model: str, vocabulary: int) -> Settings:
    """The options with what --quick stands for; ``began`` is when the run did (``time.monotonic()``)."""
    quick: bool = options.quick
    minutes = QUICK_MINUTES if options.minutes is None and quick else options.minutes
    adapters = [None if name == THE_MODEL else name for name in options.adapters]
    return Settings(
        command=public_command(sys.argv[1:]),
        model=model,
        vocabulary=vocabulary,
        json=options.json,
        parts=options.only,
        temperatures=options.temperatures or ([0.0, 0.7] if quick else [0.0, 0.3, 0.5, 0.7, 1.0]),
        sharpnesses=options.sharpnesses or ([4.0] if quick else [1.0, 2.0, 4.0, 8.0]),
        concurrencies=options.concurrencies,
        overhead_concurrencies=options.overhead_concurrencies or options.concurrencies,
        overhead_variants=[Variant(draw, each) for each in adapters for draw in options.overhead_draws],
        extends_at_once=options.extends_at_once,
        extends_adapters=adapters,
        states=options.states,
        samples=options.samples,
        search_samples=options.search_samples,
        tokens=options.tokens or (100 if quick else 500),
        overhead_tokens=options.overhead_tokens or (32 if quick else 200),
        began=began,
        deadline=None if minutes is None else began + 60 * minutes - RESERVE_S,
    )


def main(argv: Sequence[str] | None = None) -> None:
    began = time.monotonic()
    parser = _parser()
    options = parser.parse_args(argv)
    if options.ngram and on_cpu():
        parser.error("--ngram needs a GPU: SGLang's speculative decoding does not run on a CPU")
    # In a file the table shall have the room that it needs.
    console = Console(width=None if sys.stdout.isatty() else 180)
    prompts: Prompts
    if options.random_prompts:
        vocabulary = options.random_prompts
        prompts = random_prompts(vocabulary, options.states)
    else:
        folder = options.model_path or ensure_embedded_model()
        vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
        prompts = game24_prompts(folder, options.states)
    urls = {
        kind: url
        for kind, url in (
            ("hive", options.hive_url),
            ("stock", options.stock_url),
            ("ngram", options.ngram_url),
        )
        if url
    }
    missing = [kind for kind in ("hive", "stock") if kind not in urls] if not options.hive_url else []
    if options.ngram and "ngram" not in urls:
        missing.append("ngram")
    try:
        with contextlib.ExitStack() as stack:
            if missing:
                console.print(f"starting {' and '.join(missing)}")
                model = options.model_path or ensure_embedded_model()
                urls |= stack.enter_context(started(missing, model, options.flags, on_cpu()))
            session = Session(settings_of(options, began, served_model(urls["hive"]), vocabulary), console)
            asyncio.run(session.run(urls, prompts))
    except* (BenchError, ServerDied, aiohttp.ClientError, TimeoutError) as errors:
        raise SystemExit(
            "\n".join(f"bench: {str(error) or repr(error)}" for error in errors.exceptions)
        ) from None
    report = session.write()
    if report.rows:
        console.print(table(report.rows))
    if report.toll:
        console.print(toll_table(report.toll))
    for line in summary_lines(report):
        console.print(line, highlight=False)
    if can_plot(console):
        from bench.logits_cache.plots import write_plots

        for path in write_plots(report.rows, options.plots or options.json.parent, options.json.stem):
            console.print(f"plot: {path}", highlight=False)
    console.print(f"report: {options.json} ({report.seconds:.0f} s)", highlight=False)


if __name__ == "__main__":
    main()
