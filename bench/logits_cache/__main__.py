"""``python -m bench.logits_cache --json FILE [--quick]``: what the Logits Cache is worth.

Starts a Hive server and a stock SGLang server with the embedded model, or measures servers that run already
(``--hive-url``, ``--stock-url``, ``--ngram-url``). ``--quick`` takes at most ten minutes on two cores.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence
from pathlib import Path

import aiohttp

from bench.harness.client import BenchError
from bench.harness.command import Command, Run
from bench.harness.servers import served_model, started
from bench.logits_cache.report import summary_lines, table
from bench.logits_cache.session import Session, Settings
from bench.logits_cache.toll import toll_table
from bench.logits_cache.workloads import DRAWS, WORKLOADS, Prompts, Variant, game24_prompts, random_prompts
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


def _parser() -> Command:
    quick = "T 0 and 0.7, 100 tokens, as many states as fit into ten minutes"
    parser = Command("bench.logits_cache", __doc__, quick=quick, plots=True)
    option, several = parser.option, parser.several
    option("--minutes", float, "M", "choose the numbers of states so that the run takes this long")
    option("--hive-url", str, "URL", "a running Hive server (default: start one)")
    option("--stock-url", str, "URL", "a running stock SGLang server (default: start one)")
    option("--ngram-url", str, "URL", "a running SGLang server that speculates by NGRAM")
    parser.add_argument("--ngram", action="store_true", help="start an NGRAM server, too (needs a GPU)")
    about = "model of the servers, whose tokenizer.json cuts the prompts (default: the embedded model)"
    option("--model-path", Path, "DIR", about)
    about = "prompts of random token ids below VOCABULARY, for servers without a tokenizer"
    option("--random-prompts", int, "VOCABULARY", about)
    several("--only", ONLY, "only these parts", list(PARTS))
    option("--temperatures", float, "T", nargs="+")
    option("--sharpnesses", float, "S", "divisors of temperature 1", nargs="+")
    option("--concurrencies", int, "C", nargs="+", default=[1, 10])
    option("--overhead-concurrencies", int, "C", nargs="+")
    about = "how requests of the record overhead draw: plain, at a temperature; top_p, 0.95; top_k, 50"
    several("--overhead-draws", DRAWS, about, ["plain"])
    about = "LoRA adapters that answer in overhead and short_extends, each in turn; none is the model itself"
    option("--adapters", str, "NAME", about, nargs="+", default=[THE_MODEL])
    option("--extends-at-once", int, "C", "requests of short_extends", nargs="+", default=[1, 4, 8])
    option("--states", int, "N", "states per block, at the most", default=100)
    option("--samples", int, "N", "per state of resample and sharpened", default=8)
    option("--search-samples", int, "N", "per state of search", default=16)
    option("--tokens", int, "N", "output length of resample and sharpened")
    option("--overhead-tokens", int, "N", "output length of record overhead")
    parser.server_flags("the servers that are started")
    return parser


def settings_of(run: Run, model: str, vocabulary: int) -> Settings:
    """The options with what --quick stands for."""
    options, quick = run.options, bool(run.options.quick)
    adapters = [None if name == THE_MODEL else name for name in options.adapters]
    same = ("concurrencies", "extends_at_once", "json", "samples", "search_samples", "states")
    return Settings(
        command=run.command,
        model=model,
        vocabulary=vocabulary,
        parts=options.only,
        temperatures=options.temperatures or ([0.0, 0.7] if quick else [0.0, 0.3, 0.5, 0.7, 1.0]),
        sharpnesses=options.sharpnesses or ([4.0] if quick else [1.0, 2.0, 4.0, 8.0]),
        overhead_concurrencies=options.overhead_concurrencies or options.concurrencies,
        overhead_variants=[Variant(draw, each) for each in adapters for draw in options.overhead_draws],
        extends_adapters=adapters,
        tokens=options.tokens or (100 if quick else 500),
        overhead_tokens=options.overhead_tokens or (32 if quick else 200),
        began=run.began,
        deadline=run.deadline(RESERVE_S, QUICK_MINUTES),
        **{name: getattr(options, name) for name in same},
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = _parser()
    run = parser.run(argv)
    options, console = run.options, run.console
    if options.ngram and on_cpu():
        parser.error("--ngram needs a GPU: SGLang's speculative decoding does not run on a CPU")
    prompts: Prompts
    if options.random_prompts:
        vocabulary = options.random_prompts
        prompts = random_prompts(vocabulary, options.states)
    else:
        folder = options.model_path or ensure_embedded_model()
        vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
        prompts = game24_prompts(folder, options.states)
    urls = {kind: url for kind in ("hive", "stock", "ngram") if (url := getattr(options, f"{kind}_url"))}
    missing = [kind for kind in ("hive", "stock") if kind not in urls] if not options.hive_url else []
    if options.ngram and "ngram" not in urls:
        missing.append("ngram")
    try:
        with contextlib.ExitStack() as stack:
            if missing:
                console.print(f"starting {' and '.join(missing)}")
                model = options.model_path or ensure_embedded_model()
                urls |= stack.enter_context(started(missing, model, options.flags, on_cpu()))
            session = Session(settings_of(run, served_model(urls["hive"]), vocabulary), console)
            asyncio.run(session.run(urls, prompts))
    except* (BenchError, ServerDied, aiohttp.ClientError, TimeoutError) as errors:
        raise SystemExit(
            "\n".join(f"bench: {str(error) or repr(error)}" for error in errors.exceptions)
        ) from None
    report = session.write()

    def plot(folder: Path, stem: str) -> list[Path]:
        from bench.logits_cache.plots import write_plots

        return write_plots(report.rows, folder, stem)

    tables = [
        *([table(report.rows)] if report.rows else []),
        *([toll_table(report.toll)] if report.toll else []),
    ]
    run.finish(report, [*tables, *summary_lines(report)], plot, written=True)


if __name__ == "__main__":
    main()
