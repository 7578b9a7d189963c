"""What the tests of segments and of messages ask the server that they share, and what they read off its answers."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from hive.server.server_process import ServerProcess, slowdown

LOGPROBS = 5
"""Likeliest tokens whose log-probabilities are compared, at each position."""


def tokens(seed: int, length: int) -> list[int]:
    """Tokens that no other seed has."""
    chance = random.Random(seed)
    return [chance.randrange(1000, 40_000) for _ in range(length)]


def span(start: int, end: int, **fields: Any) -> dict[str, Any]:
    return {"start": start, "end": end, **fields}


class Answer:
    """One output of ``/generate``."""

    def __init__(self, body: dict[str, Any]) -> None:
        meta = body["meta_info"]
        self.ids: list[int] = body["output_ids"]
        self.text: str = body["text"]
        self.cached: int = meta["cached_tokens"]
        self.retractions: int = meta["num_retractions"]
        self.replayed: int = meta["hive"]["tokens_replayed"]
        self.kv: dict[str, int] | None = meta["hive"].get("kv")
        self.logprobs = [
            {entry[1]: entry[0] for entry in [chosen, *top]}
            for chosen, top in zip(
                meta["output_token_logprobs"], meta["output_top_logprobs"] or [], strict=True
            )
        ]

    def distance(self, other: Answer) -> float:
        """The largest relative difference of two log-probabilities, of tokens that both have among the likeliest."""
        assert self.ids == other.ids
        return max(
            abs(ours[token] / theirs[token] - 1.0)
            for ours, theirs in zip(self.logprobs, other.logprobs, strict=True)
            for token in ours.keys() & theirs.keys()
        )


def counts(exact: int = 0, placed: int = 0, recomputed: int = 0, missing: int = 0) -> dict[str, int]:
    return {"exact": exact, "placed": placed, "recomputed": recomputed, "missing": missing}


class KvClient:
    """A server that keeps segments; its methods may be called from many threads."""

    def __init__(self, server: ServerProcess, key: str | None = None) -> None:
        self.server = server
        # Replayed sampling would hide what KV it is from.
        headers = {"x-hive-replay": "off", **({"authorization": f"Bearer {key}"} if key else {})}
        self.http = httpx.Client(base_url=server.url, timeout=120, headers=headers, trust_env=False)

    def post(self, path: str, body: dict[str, Any], **tags: str) -> Any:
        answer = self.raw(path, body, **tags)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def raw(self, path: str, body: dict[str, Any], **tags: str) -> httpx.Response:
        """An answer, whatever its status; tags are those of the ``x-hive-`` headers."""
        headers = {f"x-hive-{name}": value for name, value in tags.items()}
        return self.http.post(path, json=body, headers=headers)

    @contextmanager
    def stream(self, path: str, body: dict[str, Any]) -> Iterator[Iterator[Any]]:
        """The events of an answer; leaving the block closes the connection."""
        with self.http.stream("POST", path, json={**body, "stream": True}) as answer:
            assert answer.status_code == 200, answer.read()
            yield (
                json.loads(line.removeprefix("data: "))
                for line in answer.iter_lines()
                if line.startswith("data: {")
            )

    def generate(
        self,
        ids: Sequence[int],
        segments: dict[str, Any] | None = None,
        new: int = 5,
        *,
        adapter: str | None = None,
        **tags: str,
    ) -> Answer:
        """The likeliest output."""
        params: dict[str, Any] = {"max_new_tokens": new, "temperature": 0, "ignore_eos": True}
        if segments is not None:
            params["custom_params"] = {"hive_segments": segments}
        body = {"input_ids": list(ids), "return_logprob": True, "top_logprobs_num": LOGPROBS}
        if adapter is not None:
            body["lora_path"] = adapter
        return Answer(self.post("/generate", {**body, "sampling_params": params}, **tags))

    def prefill(self, ids: Sequence[int], *parents: str, **fields: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self.post(
            "/hive/prefill", {"tokens": list(ids), "parents": list(parents), **fields}
        )
        return answer

    def decode(self, header: Sequence[int], *parents: str, new: int = 8, **fields: Any) -> dict[str, Any]:
        """The likeliest message."""
        params = {"max_new_tokens": new, "temperature": 0, "ignore_eos": True}
        body = {"header_tokens": list(header), "parents": list(parents), "sampling_params": params, **fields}
        answer: dict[str, Any] = self.post("/hive/decode", body)
        return answer

    def tokenize(self, text: str) -> list[int]:
        ids: list[int] = self.post("/tokenize", {"model": "any", "prompt": text})["tokens"]
        return ids

    def store(self) -> dict[str, int]:
        """Counters of the store."""
        counters: dict[str, int] = self.http.get("/hive/stats").json()["radix_cache"]["segments"]
        return counters

    def flush(self) -> None:
        """Empty all caches; the engine refuses for a moment after its last answer."""
        end = time.monotonic() + 60 * slowdown()
        while (answer := self.http.post("/flush_cache")).status_code != 200:
            assert time.monotonic() < end, answer.text
            time.sleep(0.05)

    def assert_sound(self) -> None:
        """Raise AssertionError unless nothing runs any more, nobody reads the store and all books add up."""
        end = time.monotonic() + 60 * slowdown()
        while not (found := self.post("/hive/check", {}))["idle"]:
            assert time.monotonic() < end, found
            time.sleep(0.1)
        assert found["problems"] == []
        assert self.store()["leased_tokens"] == 0
        # It looks for leaks when it has been idle for a moment.
        time.sleep(1.5)
        assert self.server.process.poll() is None
        log = self.server.log_path.read_text(errors="replace").lower().partition("fired up")[2]
        assert "leak" not in log
        assert "traceback" not in log


def refused(answer: httpx.Response, param: str) -> None:
    """Raise AssertionError unless a request was refused for a field."""
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param, error
    assert error["message"]


APPROXIMATELY = 1e-4
"""Of log-probabilities, float32: the server and transformers add up in different orders."""


def close(value: float) -> Any:
    return pytest.approx(value, abs=APPROXIMATELY)
