"""One server over HTTP: requests with what they took, flushes and counters."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import aiohttp

from bench.logits_cache.samples import Timing

FLUSH_PATIENCE_S = 30
"""A server flushes only when idle; the last answer may be out before the engine has noticed."""


class BenchError(RuntimeError):
    """A server did not answer as it must for its numbers to mean anything."""


class Client:
    """Requests to one server; use it as an async context manager."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        # It reads no environment variables by itself: none can put a proxy between this process and the server.
        self._http = aiohttp.ClientSession(
            self.url, timeout=aiohttp.ClientTimeout(900), connector=aiohttp.TCPConnector(limit=0)
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._http is not None:
            await self._http.close()

    async def generate(
        self, input_ids: Sequence[int], params: dict[str, Any], adapter: str | None = None
    ) -> Timing:
        """Send one streaming request, to the model or to an adapter of it, and wait for its end.

        Raises:
            BenchError: when the server refuses it or the stream ends early.
        """
        body = {"input_ids": list(input_ids), "sampling_params": params, "stream": True}
        if adapter is not None:
            body["lora_path"] = adapter
        started = time.perf_counter()
        first = 0.0
        meta: dict[str, Any] = {}
        output: list[int] = []
        async with self._session.post("/generate", json=body) as answer:
            if answer.status != 200:
                raise BenchError(f"HTTP {answer.status}: {(await answer.text())[:500]}")
            async for line in answer.content:
                if not line.startswith(b"data: {"):
                    continue
                chunk = json.loads(line.removeprefix(b"data: "))
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
            cached=meta.get("cached_tokens", 0),
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
        status, text = await self._call("POST", "/generate", json=body)
        if status != 200:
            raise BenchError(f"HTTP {status}: {text[:500]}")
        rows = json.loads(text)["meta_info"]["output_top_logprobs"]
        # JSON knows no infinity: a forbidden token's logprob arrives as null, or as the least float.
        return [[entry[0] for entry in row if entry[0] is not None and entry[0] > -1e4] for row in rows]

    async def refusal(self, input_ids: Sequence[int], params: dict[str, Any]) -> str | None:
        """Why the server refuses a request (HTTP 400), or None if it takes it."""
        body = {"input_ids": list(input_ids), "sampling_params": params}
        status, text = await self._call("POST", "/generate", json=body)
        if status == 400:
            message = json.loads(text).get("error", text)
            return str(message.get("message", message) if isinstance(message, dict) else message)
        if status != 200:
            raise BenchError(f"HTTP {status}: {text[:500]}")
        return None

    async def flush(self) -> None:
        """Make the server's caches cold."""
        status, text = await self._call("POST", "/flush_cache", params={"timeout": FLUSH_PATIENCE_S})
        if status != 200:
            raise BenchError(f"flush_cache: HTTP {status}: {text[:500]}")

    async def get(self, path: str) -> dict[str, Any]:
        """A JSON object of the server."""
        status, text = await self._call("GET", path)
        if status != 200:
            raise BenchError(f"{path}: HTTP {status}: {text[:500]}")
        body: dict[str, Any] = json.loads(text)
        return body

    @property
    def _session(self) -> aiohttp.ClientSession:
        assert self._http is not None, "a client is used as a context manager"
        return self._http

    async def _call(self, method: str, path: str, **options: Any) -> tuple[int, str]:
        async with self._session.request(method, path, **options) as answer:
            return answer.status, await answer.text()
