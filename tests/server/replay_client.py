"""What the tests of the Logits Cache ask a server, and what they read off its answers."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

KEY = "sesame"
"""API key of the server that answers exactly."""

PROMPTS = ["The capital of France is", "Once upon a time there was a", "2 + 2 ="]

FORBIDDEN = -1e30
"""Log-probabilities below it stand for minus infinity: tokens that a grammar or a bias forbids."""


@dataclass(frozen=True)
class Ask:
    """One request to ``/generate``, without the policy."""

    prompt: str | list[int]
    params: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)
    """Beside ``sampling_params``: ``stream``, ``return_logprob`` and so on."""
    tag: dict[str, Any] = field(default_factory=dict)

    def body(self, replay: str) -> dict[str, Any]:
        hive = {"replay": replay, **self.tag}
        params = {"max_new_tokens": 16, "temperature": 0.7, "custom_params": {"hive": hive}, **self.params}
        prompt = {"text": self.prompt} if isinstance(self.prompt, str) else {"input_ids": self.prompt}
        return {**prompt, "sampling_params": params, **self.fields}


class Answer:
    """One output."""

    def __init__(self, body: dict[str, Any]) -> None:
        meta = body["meta_info"]
        self.text: str = body["text"]
        self.ids: list[int] = body["output_ids"]
        self.finish: dict[str, Any] = meta["finish_reason"]
        self.hive: dict[str, Any] = meta["hive"]
        self.retractions: int = meta["num_retractions"]
        self.logprobs: list[list[Any]] = meta.get("output_token_logprobs") or []
        self.top_logprobs: list[list[list[Any]]] = meta.get("output_top_logprobs") or []
        self.chosen_logprobs: list[list[list[Any]]] = meta.get("output_token_ids_logprobs") or []

    @property
    def replayed(self) -> int:
        return int(self.hive["tokens_replayed"])

    def says(self) -> tuple[list[int], str, dict[str, Any]]:
        """All that two equal answers have in common, but for log-probabilities."""
        return self.ids, self.text, self.finish

    def assert_same(self, other: Answer) -> None:
        """Raise AssertionError unless both say the same, log-probabilities included."""
        assert self.says() == other.says()
        assert_logprobs([self.logprobs], [other.logprobs])
        assert_logprobs(self.top_logprobs, other.top_logprobs)
        assert_logprobs(self.chosen_logprobs, other.chosen_logprobs)


def assert_logprobs(
    found: Sequence[Sequence[Sequence[Any]]],
    expected: Sequence[Sequence[Sequence[Any]]],
    tolerance: float = 1e-4,
) -> None:
    """Raise AssertionError unless both name the same tokens with the same log-probabilities.

    Which tokens fill a list up that has run out of possible ones is chance, so those are left out.
    """
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        one, other = ([entry for entry in side if entry[0] > FORBIDDEN] for side in (ours, theirs))
        assert [entry[1] for entry in one] == [entry[1] for entry in other]
        assert all(abs(a[0] - b[0]) <= tolerance for a, b in zip(one, other, strict=True)), (one, other)


class ReplayClient:
    """A server with a Logits Cache; its methods may be called from many threads."""

    def __init__(self, url: str, key: str = KEY) -> None:
        self.http = httpx.Client(
            base_url=url, timeout=120, headers={"Authorization": f"Bearer {key}"}, trust_env=False
        )

    def samples(self, ask: Ask, replay: str = "stepwise") -> list[Answer]:
        """Send a request and wait for all its outputs."""
        body = ask.body(replay)
        if not body.get("stream"):
            answer = self.post("/generate", body)
            return [Answer(item) for item in (answer if isinstance(answer, list) else [answer])]
        last: dict[int, dict[str, Any]] = {}
        with self.stream("/generate", body) as chunks:
            for chunk in chunks:
                before = last.get(chunk.get("index", 0), {}).get("output_ids", [])
                assert chunk["output_ids"][: len(before)] == before, "a stream takes tokens back"
                last[chunk.get("index", 0)] = chunk
        return [Answer(chunk) for _, chunk in sorted(last.items())]

    def generate(self, ask: Ask, replay: str = "stepwise") -> Answer:
        """Send a request that has one output."""
        (answer,) = self.samples(ask, replay)
        return answer

    def post(self, path: str, body: Any) -> Any:
        answer = self.http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json() if answer.headers["content-type"] == "application/json" else answer.text

    @contextmanager
    def stream(self, path: str, body: Any) -> Iterator[Iterator[dict[str, Any]]]:
        """The chunks of a streaming answer; leaving the block closes the connection."""
        with self.http.stream("POST", path, json=body) as answer:
            assert answer.status_code == 200, answer.read()
            yield (
                json.loads(line.removeprefix("data: "))
                for line in answer.iter_lines()
                if line.startswith("data: {")
            )

    def tokens(self, text: str) -> list[int]:
        ids: list[int] = self.post("/tokenize", {"model": "any", "prompt": text})["tokens"]
        return ids

    def cache(self) -> dict[str, Any]:
        """``logits_cache`` of ``/hive/stats``."""
        counts: dict[str, Any] = self.http.get("/hive/stats").json()["logits_cache"]
        return counts

    def wait_for(self, name: str, least: int, most: float = math.inf) -> dict[str, Any]:
        """The first counters of which one is in a range; AssertionError when it is not in time."""
        end = time.monotonic() + 20
        while not least <= (counts := self.cache())[name] <= most:
            assert time.monotonic() < end, counts
            time.sleep(0.02)
        return counts

    def flush(self) -> None:
        """Empty both caches; the engine refuses for a moment after its last answer."""
        end = time.monotonic() + 20
        while (answer := self.http.post("/flush_cache")).status_code != 200:
            assert time.monotonic() < end, answer.text
            time.sleep(0.05)
