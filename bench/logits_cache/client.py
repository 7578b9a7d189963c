"""What the bench asks a server, and what a request took."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.harness import client
from bench.harness.client import BenchError


@dataclass(frozen=True, slots=True)
class Timing:
    """One answer and what it took, seen from the client."""

    latency_s: float
    ttft_s: float
    """Time to the first token, or to the first chunk that held some."""
    tokens: int
    """Output tokens, replayed ones included."""
    replayed: int
    """Output tokens that the Logits Cache served."""
    output: tuple[int, ...] = ()
    """The output's token ids."""
    cached: int = 0
    """Prompt tokens whose KV was there."""

    @property
    def tps(self) -> float:
        """Output tokens per second of this request."""
        return self.tokens / self.latency_s

    @property
    def served_whole(self) -> bool:
        """Whether the model never ran for it."""
        return 0 < self.tokens == self.replayed


Key = tuple[str, int]
"""State and number of the sample: names the same request in every arm."""
Samples = Mapping[Key, Timing]
"""The requests of one arm in one block."""


class Client(client.Client):
    """Requests to one server."""

    async def generate(
        self, input_ids: Sequence[int], params: dict[str, Any], adapter: str | None = None
    ) -> Timing:
        """Send one streaming request, to the model or to an adapter of it, and wait for its end."""
        body = {"input_ids": list(input_ids), "sampling_params": params}
        if adapter is not None:
            body["lora_path"] = adapter
        answer = await self.stream("/generate", body)
        meta = answer.body["meta_info"]
        return Timing(
            latency_s=answer.ended_s - answer.started_s,
            ttft_s=answer.first_s - answer.started_s,
            tokens=meta["completion_tokens"],
            replayed=meta.get("hive", {}).get("tokens_replayed", 0),
            output=tuple(answer.body["output_ids"]),
            cached=meta.get("cached_tokens", 0),
        )

    async def top_logprobs(
        self, input_ids: Sequence[int], params: dict[str, Any], top: int
    ) -> list[list[float]]:
        """The ``top`` largest log-probabilities at each output position, after temperature and grammar.

        Tokens that a grammar forbids are left out.
        """
        body = {"input_ids": list(input_ids), "sampling_params": params}
        answer = await self.post("/generate", {**body, "return_logprob": True, "top_logprobs_num": top})
        rows = answer["meta_info"]["output_top_logprobs"]
        # JSON knows no infinity: a forbidden token's logprob arrives as null, or as the least float.
        return [[entry[0] for entry in row if entry[0] is not None and entry[0] > -1e4] for row in rows]

    async def refusal(self, input_ids: Sequence[int], params: dict[str, Any]) -> str | None:
        """Why the server refuses a request (HTTP 400), or None if it takes it."""
        body = {"input_ids": list(input_ids), "sampling_params": params}
        status, text = await self.call("POST", "/generate", json=body)
        if status == 400:
            message = json.loads(text).get("error", text)
            return str(message.get("message", message) if isinstance(message, dict) else message)
        if status != 200:
            raise BenchError(f"HTTP {status}: {text[:500]}")
        return None
