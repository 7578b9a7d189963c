"""One server over HTTP: requests with what they took, flushes and counters."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import httpx

from bench.logits_cache.samples import Timing

FLUSH_PATIENCE_S = 30
"""A server flushes only when idle; the last answer may be out before the engine has noticed."""


class BenchError(RuntimeError):
    """A server did not answer as it must for its numbers to mean anything."""


class Client:
    """Requests to one server; use it as an async context manager."""

    def __init__(self, url: str) -> None:
        self.url = url
        # Environment variables must not put a proxy between this process and the server.
        self._http = httpx.AsyncClient(
            base_url=url,
            timeout=httpx.Timeout(900),
            limits=httpx.Limits(max_connections=None),
            trust_env=False,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def generate(self, input_ids: Sequence[int], params: dict[str, Any]) -> Timing:
        """Send one streaming request and wait for its end.

        Raises:
            BenchError: when the server refuses it or the stream ends early.
        """
        body = {"input_ids": list(input_ids), "sampling_params": params, "stream": True}
        started = time.perf_counter()
        first = 0.0
        meta: dict[str, Any] = {}
        output: list[int] = []
        async with self._http.stream("POST", "/generate", json=body) as answer:
            if answer.status_code != 200:
                raise BenchError(f"HTTP {answer.status_code}: {(await answer.aread()).decode()[:500]}")
            async for line in answer.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                chunk = json.loads(line.removeprefix("data: "))
                if "error" in chunk:
                    raise BenchError(f"the stream broke off: {str(chunk['error'])[:500]}")
                first = first or time.perf_counter() - started
                # Each chunk repeats what came before it.
                meta, output = chunk["meta_info"], chunk["output_ids"]
        if meta.get("finish_reason") is None:
            raise BenchError("the stream ended before the answer was complete")
        return Timing(
            latency_s=time.perf_counter() - started,
            ttft_s=first,
            tokens=meta["completion_tokens"],
            replayed=meta.get("hive", {}).get("tokens_replayed", 0),
            output=tuple(output),
        )

    async def top_logprobs(
        self, input_ids: Sequence[int], params: dict[str, Any], top: int
    ) -> list[list[float]]:
        """The ``top`` largest log-probabilities at each output position, after temperature and grammar.

        Tokens that a grammar forbids are left out.
        """
        body = {
            "input_ids": list(input_ids),
            "sampling_params": params,
            "return_logprob": True,
            "top_logprobs_num": top,
        }
        answer = await self._http.post("/generate", json=body)
        if answer.status_code != 200:
            raise BenchError(f"HTTP {answer.status_code}: {answer.text[:500]}")
        rows = answer.json()["meta_info"]["output_top_logprobs"]
        # JSON knows no infinity: a forbidden token's logprob arrives as null, or as the least float.
        return [[entry[0] for entry in row if entry[0] is not None and entry[0] > -1e4] for row in rows]

    async def refusal(self, input_ids: Sequence[int], params: dict[str, Any]) -> str | None:
        """Why the server refuses a request (HTTP 400), or None if it takes it."""
        answer = await self._http.post(
            "/generate", json={"input_ids": list(input_ids), "sampling_params": params}
        )
        if answer.status_code == 400:
            message = answer.json().get("error", answer.text)
            return str(message.get("message", message) if isinstance(message, dict) else message)
        if answer.status_code != 200:
            raise BenchError(f"HTTP {answer.status_code}: {answer.text[:500]}")
        return None

    async def flush(self) -> None:
        """Make the server's caches cold."""
        answer = await self._http.post("/flush_cache", params={"timeout": FLUSH_PATIENCE_S})
        if answer.status_code != 200:
            raise BenchError(f"flush_cache: HTTP {answer.status_code}: {answer.text[:500]}")

    async def get(self, path: str) -> dict[str, Any]:
        """A JSON object of the server."""
        answer = await self._http.get(path)
        if answer.status_code != 200:
            raise BenchError(f"{path}: HTTP {answer.status_code}: {answer.text[:500]}")
        body: dict[str, Any] = answer.json()
        return body
