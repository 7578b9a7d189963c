"""Part B: what reuse costs in quality. The town meeting by every encoding context and corrector.

A continuation of `FORCED` tokens is sampled on the exact path and then forced upon every arm; compared are the full
distributions at each of its positions.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from rich.console import Console

from bench.harness.client import Client
from bench.harness.command import Pace
from bench.kv_segments.accounting import KV, kv_of
from bench.kv_segments.arms import Corrector
from bench.kv_segments.distributions import Distance, distance, generated_states, last_states
from bench.kv_segments.encoding import RealText
from bench.kv_segments.town_meeting import Block, Reader, readers

FORCED = 50
TEMPERATURE = 0.7
"""Of the continuation."""

ContextName = Literal["standalone", "neutral", "producer"]
CONTEXTS: tuple[ContextName, ...] = get_args(ContextName)
QualityArm = Literal["segments", "dropped", "exact"]
"""Blocks placed; blocks left out; the exact path by another way (the continuation decoded token by token, and not
prefilled), which says how much is rounding."""

RECOMPUTE_ALL = "recompute-all"


def correctors(share: float, block: int) -> dict[str, Corrector]:
    """All that there are, by the names of the report."""
    return {
        "none": "none",
        "first-k": {"kind": "first-k", "share": share},
        "blend": {"kind": "blend", "share": share},
        f"blend-{block}": {"kind": "blend", "share": share, "block": block},
        RECOMPUTE_ALL: RECOMPUTE_ALL,
    }


@dataclass(frozen=True)
class Setup:
    """How a reader gets the messages."""

    arm: QualityArm
    context: ContextName | None = None
    corrector: str | None = None


@dataclass(frozen=True)
class Reading:
    """One reader under one setup."""

    round: int
    agent: int
    kv: KV | None
    """None where nothing was declared a segment."""
    distance: Distance


@dataclass
class QualitySession:
    """What was measured so far."""

    client: Client
    encode: RealText
    head: torch.Tensor
    contexts: Sequence[ContextName]
    correctors: Mapping[str, Corrector]
    seed: int
    console: Console
    readings: dict[Setup, list[Reading]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    async def run(self, rounds: int, deadline: float | None) -> None:
        """So many rounds, or as many as there is time for, but at least one; ``deadline`` is by `time.monotonic`.

        Raises `BenchError` when the server does not do as it is asked.
        """
        await self.client.flush()
        pace = Pace(deadline, at_least_one=True)
        for number in range(rounds):
            began = time.monotonic()
            if not pace.goes_on():
                self.left_out[f"quality, last {rounds - number} of {rounds} rounds"] = "there was no time"
                break
            each = readers(number, self.encode)
            await self._encode_blocks(each[0].blocks, each[0].task[:1])
            for reader in each:
                await self._read(reader)
            self.console.print(
                f"quality: round {number + 1} of {rounds} in {time.monotonic() - began:.0f} s",
                highlight=False,
            )

    async def _encode_blocks(self, blocks: Sequence[Block], behind: Sequence[int]) -> None:
        """Have every block stored in every context, before any reader gets it."""
        for context in self.contexts:
            for block in blocks:
                # A producer's context is what stood before the block; the server makes the others by itself.
                before = block.history if context == "producer" else ()
                begin = len(before)
                span = _span((begin, begin + len(block.tokens)), _context(block, context))
                await self._ask([*before, *block.tokens, *behind], _segments([span], "none"))

    async def _read(self, reader: Reader) -> None:
        """All setups of a reader."""
        sampled = await self._ask(
            reader.prompt,
            {
                "max_new_tokens": FORCED,
                "ignore_eos": True,
                "temperature": TEMPERATURE,
                "sampling_seed": 1000 * self.seed + 10 * reader.round + reader.agent,
            },
            alone=True,
        )
        forced = sampled["output_ids"][:-1]
        meta = (await self._ask([*reader.prompt, *forced], {}, alone=True))["meta_info"]
        reference = last_states(meta, FORCED)
        self._note(Setup("exact"), reader, None, reference, generated_states(sampled["meta_info"], FORCED))
        meta = (await self._ask([*reader.history, *reader.task, *forced], {}, alone=True))["meta_info"]
        self._note(Setup("dropped"), reader, None, reference, last_states(meta, FORCED))
        for context in self.contexts:
            spans = [
                _span(place, _context(block, context))
                for place, block in zip(reader.spans(), reader.blocks, strict=True)
            ]
            for name, corrector in self.correctors.items():
                meta = (await self._ask([*reader.prompt, *forced], _segments(spans, corrector)))["meta_info"]
                kv = kv_of(meta.get("hive", {}).get("kv"))
                self._note(Setup("segments", context, name), reader, kv, reference, last_states(meta, FORCED))

    def _note(
        self, setup: Setup, reader: Reader, kv: KV | None, reference: torch.Tensor, found: torch.Tensor
    ) -> None:
        reading = Reading(reader.round, reader.agent, kv, distance(reference, found, self.head))
        self.readings.setdefault(setup, []).append(reading)

    async def _ask(
        self, tokens: Sequence[int], params: Mapping[str, Any], alone: bool = False
    ) -> dict[str, Any]:
        """An answer with hidden states; ``alone``: from a radix tree of its own, so that nothing of it was cached, and
        nothing is left that a later prompt would find instead of its segments."""
        body: dict[str, Any] = {
            "input_ids": list(tokens),
            "sampling_params": {"max_new_tokens": 1, "temperature": 0, **params},
            "return_hidden_states": True,
        }
        if alone:
            body["extra_key"] = uuid.uuid4().hex
        return await self.client.post("/generate", body)


def _context(block: Block, wanted: ContextName) -> ContextName:
    """A block without a producer stands alone."""
    return "standalone" if wanted == "producer" and not block.history else wanted


def _span(place: tuple[int, int], context: ContextName) -> dict[str, Any]:
    return {"start": place[0], "end": place[1], "context": context}


def _segments(spans: Sequence[dict[str, Any]], corrector: Corrector) -> dict[str, Any]:
    """Sampling parameters that declare spans of the prompt."""
    return {"custom_params": {"hive_segments": {"spans": list(spans), "corrector": corrector}}}
