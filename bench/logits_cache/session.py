"""One run of the bench: its settings, its arms, and what has been measured so far."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from bench.harness.client import BenchError
from bench.harness.command import how_made
from bench.logits_cache.analysis import Interval, Overhead
from bench.logits_cache.arms import POLICIES, REPLAYING, Arm, ArmName, answering
from bench.logits_cache.client import Client
from bench.logits_cache.micro import MicroResult, measure_replay
from bench.logits_cache.overhead import least_seconds, measure_overhead
from bench.logits_cache.plan import (
    Clock,
    Extent,
    Part,
    Speed,
    affordable,
    fit,
    state_seconds,
    templates,
)
from bench.logits_cache.report import Report, crossings, rows_of
from bench.logits_cache.run import BlockResult, calibrate, measure_entropy, run_block
from bench.logits_cache.short_extends import ShortExtends, Texts, measure_short_extends
from bench.logits_cache.toll import TollRow, measure_toll
from bench.logits_cache.workloads import WORKLOADS, Block, Prompts, Variant, WorkloadName

SHARPENED_ARMS: tuple[ArmName, ...] = ("off", "stepwise", "hotspot")
WEIGHTS: dict[WorkloadName, float] = {"resample": 4.0, "sharpened": 2.0, "search": 1.0}
"""Shares of the time that is left over, where it is limited."""
OVERHEAD_WEIGHT = 1.0
SHORT_EXTENDS_SHARE = 0.35
"""Of the time there is, the part that short extends get where something else is measured, too."""
SAMPLES_LEAST: dict[WorkloadName, int] = {"resample": 3, "sharpened": 3, "search": 4}
"""Where time is so short that the samples per state must be fewer than wanted."""
SEARCH_TOKENS_EXPECTED = 10
MICRO_TEMPERATURES = (0.0, 0.7, 1.0)
MICRO_HEADLINE = 0.7


@dataclass(frozen=True)
class Settings:
    command: str
    model: str
    vocabulary: int
    """Token ids that the model knows."""
    json: Path
    parts: Sequence[str]
    temperatures: Sequence[float]
    sharpnesses: Sequence[float]
    concurrencies: Sequence[int]
    overhead_concurrencies: Sequence[int]
    overhead_variants: Sequence[Variant]
    extends_at_once: Sequence[int]
    extends_adapters: Sequence[str | None]
    states: int
    samples: int
    search_samples: int
    tokens: int
    overhead_tokens: int
    began: float
    """``time.monotonic()`` at the start of the run."""
    deadline: float | None
    """``time.monotonic()`` when everything ought to be measured; None for no limit."""


class Session:
    """Measures what its settings ask for; the report is written after every block."""

    def __init__(self, settings: Settings, console: Console) -> None:
        self.settings = settings
        self.console = console
        self.results: list[BlockResult] = []
        self.overheads: list[Overhead] = []
        self.short_extends: list[ShortExtends] = []
        self.micro: list[MicroResult] = []
        self.toll: list[TollRow] = []
        self.left_out: dict[str, str] = {}
        self._entropies: dict[tuple[str, float, bool], Interval | None] = {}

    async def run(self, urls: dict[str, str], prompts: Prompts) -> None:
        """Measure the servers at ``urls`` (by kind: ``hive``, and ``stock`` and ``ngram`` where there are).

        Raises `BenchError` when a server does not answer as it must.
        """
        settings = self.settings
        if "micro" in settings.parts:
            self.micro = [measure_replay(temperature) for temperature in MICRO_TEMPERATURES]
        if "toll" in settings.parts:
            self.toll = await measure_toll(urls, prompts)
            if list(settings.parts) == ["toll"]:
                return
        async with contextlib.AsyncExitStack() as stack:
            clients = {kind: await stack.enter_async_context(Client(url)) for kind, url in urls.items()}
            arms = await self._answering_arms(clients, prompts)
            if "short_extends" in settings.parts:
                await self._short_extends(arms, prompts)
            if set(settings.parts) - {"micro", "short_extends"}:
                speeds = await self._calibrate(arms, prompts)
                await self._measure(arms, prompts, speeds)

    async def _short_extends(self, arms: dict[ArmName, Arm], prompts: Prompts) -> None:
        """Hive's server as it comes against stock SGLang, for the model and for adapters in turn."""
        settings = self.settings
        if not {"stock", "stepwise"} <= arms.keys():
            self.left_out["short extends"] = "stock SGLang or stepwise is not there"
            return
        seconds: float | None = None
        if settings.deadline is not None:
            alone = set(settings.parts) <= {"micro", "short_extends"}
            left = settings.deadline - time.monotonic()
            seconds = left * (1.0 if alone else SHORT_EXTENDS_SHARE) / len(settings.extends_adapters)
        for adapter in settings.extends_adapters:
            began = time.monotonic()
            self.console.print(f"short extends, adapter {adapter}", end="")
            self.short_extends += await measure_short_extends(
                arms["stepwise"],
                arms["stock"],
                Texts(prompts.text, max(settings.extends_at_once)),
                settings.extends_at_once,
                adapter,
                seconds,
            )
            self.console.print(f": {time.monotonic() - began:.0f} s")
            self.write()

    async def _measure(self, arms: dict[ArmName, Arm], prompts: Prompts, speeds: dict[int, Speed]) -> None:
        """Plan, and measure what the plan has time for."""
        settings = self.settings
        at_once = list(settings.overhead_concurrencies) if "overhead" in settings.parts else []
        if at_once and not {"stock", "stepwise"} <= arms.keys():
            self.left_out["record overhead"] = "stock SGLang or stepwise is not there"
            at_once = []
        blocks = templates(
            [part for part in WORKLOADS if part in settings.parts],
            settings.temperatures,
            settings.concurrencies,
            settings.sharpnesses,
            settings.tokens,
            prompts.has_text,
        )
        extents = [self._extent(block, arms, prompts) for block in blocks]
        recordings = [(variant, each) for each in at_once for variant in settings.overhead_variants]
        parts = [
            Part(
                least_seconds(settings.overhead_tokens, speeds[concurrency]),
                OVERHEAD_WEIGHT,
                optional=concurrency > min(at_once),
            )
            for _, concurrency in recordings
        ] + [
            Part(
                state_seconds(block, extent, extent.samples_least, speeds[block.concurrency]),
                WEIGHTS[block.workload],
                optional=block.workload == "sharpened" or block.concurrency > min(settings.concurrencies),
            )
            for block, extent in zip(blocks, extents, strict=True)
        ]
        left = None if settings.deadline is None else settings.deadline - time.monotonic()
        chosen = affordable(parts, left)
        clock = Clock(settings.deadline, [part for part, taken in zip(parts, chosen, strict=True) if taken])
        for number, (variant, concurrency) in enumerate(recordings):
            if chosen[number]:
                await self._overhead(arms, prompts, concurrency, clock.next(), variant)
            else:
                what = f"record overhead, {variant.label}, concurrency {concurrency}"
                self._leave_out(what, parts[number])
        for number, (block, extent) in enumerate(zip(blocks, extents, strict=True), len(recordings)):
            part = parts[number]
            if chosen[number]:
                seconds = clock.next()
                # The machine may have become slower than it was when the plan was made.
                late = settings.deadline is not None and settings.deadline - time.monotonic() < part.least_s
                if not late or block is blocks[0]:
                    speed = speeds[block.concurrency]
                    await self._block(block, extent, arms, prompts, speed, seconds, number)
                    continue
            self._leave_out(block.label, part)

    def _leave_out(self, what: str, part: Part) -> None:
        self.left_out[what] = f"it takes {part.least_s:.0f} s at the least, and time is short"
        self.console.print(f"{what} left out: {self.left_out[what]}")

    def _extent(self, block: Block, arms: dict[ArmName, Arm], prompts: Prompts) -> Extent:
        settings = self.settings
        search = block.workload == "search"
        taking_part = _taking_part(block, arms)
        replaying = sum(name in REPLAYING for name in taking_part)
        return Extent(
            states=min(settings.states, len(prompts.test)),
            samples=settings.search_samples if search else settings.samples,
            samples_least=SAMPLES_LEAST[block.workload],
            tokens_expected=SEARCH_TOKENS_EXPECTED if search else block.max_tokens,
            plain_arms=len(taking_part) - replaying,
            replaying_arms=replaying,
        )

    async def _answering_arms(self, clients: dict[str, Client], prompts: Prompts) -> dict[ArmName, Arm]:
        """The arms in the order of the tables, without those that their server does not know."""
        wanted = [Arm("stock", clients["stock"])] if "stock" in clients else []
        wanted += [Arm(name, clients["hive"]) for name in POLICIES]
        wanted += [Arm("ngram", clients["ngram"])] if "ngram" in clients else []
        arms, self.left_out = await answering(wanted, prompts.test[0])
        if "off" in self.left_out:
            reason = self.left_out["off"]
            raise BenchError(
                f"the Hive server refuses replay=off, which every figure compares with: {reason}"
            )
        for name, reason in self.left_out.items():
            self.console.print(f"arm {name} left out: {reason}")
        return {arm.name: arm for arm in arms}

    async def _calibrate(self, arms: dict[ArmName, Arm], prompts: Prompts) -> dict[int, Speed]:
        """What a request costs by concurrency, with replay off; every server is warmed up on the way."""
        settings = self.settings
        wanted = settings.concurrencies
        if "overhead" in settings.parts:
            wanted = sorted({*wanted, *settings.overhead_concurrencies})
        speeds: dict[int, Speed] = {}
        for name in (name for name in ("stock", "ngram", "off") if name in arms):
            for concurrency in wanted:
                speeds[concurrency] = speed = await calibrate(arms[name], prompts, concurrency)
                self.console.print(
                    f"calibration: {name}, concurrency {concurrency}: first token {speed.cold_s:.3f} s cold, "
                    f"{speed.warm_s:.3f} s warm, step {1000 * speed.step_s:.1f} ms"
                )
        return speeds

    async def _overhead(
        self,
        arms: dict[ArmName, Arm],
        prompts: Prompts,
        concurrency: int,
        seconds: float | None,
        variant: Variant,
    ) -> None:
        """Compare stock, off and stepwise on prompts that no cache knows."""
        compared = [arms[name] for name in ("stock", "off", "stepwise")]
        began = time.monotonic()
        self.console.print(f"record overhead, {variant.label}, concurrency {concurrency}", end="")
        result = await measure_overhead(
            compared, prompts, concurrency, self.settings.overhead_tokens, seconds, variant
        )
        self.console.print(f": {result.requests} requests x 3 arms, {time.monotonic() - began:.0f} s")
        self.overheads.append(result)
        self.write()

    async def _block(
        self,
        block: Block,
        extent: Extent,
        arms: dict[ArmName, Arm],
        prompts: Prompts,
        speed: Speed,
        seconds: float | None,
        turn: int,
    ) -> None:
        began = time.monotonic()
        block = fit(block, extent, seconds, speed)
        arms = _taking_part(block, arms)
        self.console.print(
            f"{block.label}: {block.states} states x {block.samples} samples x {len(arms)} arms", end=""
        )
        key = (block.workload, block.temperature, block.grammar)
        if key not in self._entropies:
            self._entropies[key] = await measure_entropy(
                block, arms["off"], prompts, self.settings.vocabulary
            )
        result = await run_block(block, list(arms.values()), prompts, turn)
        result.entropy = self._entropies[key]
        self.results.append(result)
        self.console.print(f", {time.monotonic() - began:.0f} s")
        self.write()

    def report(self) -> Report:
        """What is known by now."""
        rows = [row for result in self.results for row in rows_of(result)]
        nodes = sum(result.cache.nodes for result in self.results)
        kept_bytes = sum(result.cache.bytes for result in self.results)
        replayed = sum(result.cache.tokens_replayed for result in self.results)
        replay_s = sum(result.cache.replay_seconds for result in self.results)
        return Report(
            **how_made(self.settings.command, self.settings.began),
            model=self.settings.model,
            left_out=self.left_out,
            rows=rows,
            memory_bytes_per_token=kept_bytes / nodes if nodes else None,
            replay_tokens_per_s=next(
                (micro.tokens_per_s for micro in self.micro if micro.temperature == MICRO_HEADLINE), None
            ),
            replay_tokens_per_s_server=replayed / replay_s if replay_s else None,
            record_overhead=next(
                (
                    each.against_stock
                    for each in reversed(self.overheads)
                    if (each.draw, each.adapter) == Variant()
                ),
                None,
            ),
            record_overhead_details=self.overheads,
            short_extends=self.short_extends,
            replay_micro=self.micro,
            toll=self.toll,
            entropy_crossings=crossings(rows),
        )

    def write(self) -> Report:
        """Write the report; at any moment the file is a whole one."""
        report = self.report()
        path = self.settings.json
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(path.name + ".part")
        scratch.write_text(report.model_dump_json(indent=1) + "\n")
        scratch.replace(path)
        return report


def _taking_part(block: Block, arms: dict[ArmName, Arm]) -> dict[ArmName, Arm]:
    """The arms that a block is sent to."""
    if block.workload != "sharpened":
        return arms
    return {name: arm for name, arm in arms.items() if name in SHARPENED_ARMS}
