"""What a user without a frontend writes to ask SGLang: aiohttp, a dict, and `n=k` where samples are alike."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from bench.harness.client import Client
from bench.peers.steps import Steps


class Question(NamedTuple):
    """A text to continue, and how."""

    prompt: str
    settings: dict[str, Any]
    """Sampling parameters as `/generate` names them, less the seed."""
    adapter: str | None
    """LoRA adapter that answers."""


Draw = Callable[[Question, Sequence[int]], Awaitable[list[str]]]
"""Asks a question once for each of some seeds."""


class SglangClient(Client):
    """Requests to one server."""

    def __init__(self, url: str, steps: Steps) -> None:
        super().__init__(url)
        self._steps = steps

    async def draw_singly(self, question: Question, seeds: Sequence[int]) -> list[str]:
        """A request for every answer, all at once."""
        answers = await asyncio.gather(*(self._ask(question, {"sampling_seed": seed}) for seed in seeds))
        return [answer for (answer,) in answers]

    async def draw_together(self, question: Question, seeds: Sequence[int]) -> list[str]:
        """One request for all answers. It has no seed: where a server knows them, all answers would be the same."""
        return await self._ask(question, {"n": len(seeds)} if len(seeds) > 1 else {})

    async def _ask(self, question: Question, more: dict[str, Any]) -> list[str]:
        body: dict[str, Any] = {"text": question.prompt, "sampling_params": {**question.settings, **more}}
        if question.adapter is not None:
            body["lora_path"] = question.adapter
        began = time.perf_counter()
        text = await self.text("POST", "/generate", json=body)
        latency_s = time.perf_counter() - began
        parsed = json.loads(text)
        answers = parsed if isinstance(parsed, list) else [parsed]
        meta = [answer["meta_info"] for answer in answers]
        replayed = sum(each.get("hive", {}).get("tokens_replayed", 0) for each in meta)
        self._steps.add(latency_s, sum(each["completion_tokens"] for each in meta) - replayed, replayed)
        return [answer["text"] for answer in answers]
