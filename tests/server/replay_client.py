"""What the tests of the Logits Cache ask a server, and what they read off its answers."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import httpx
import pytest

from hive.server.server_process import slowdown

KEY = "sesame"
"""API key of the server that answers exactly."""

SUBJECTS = ["sea", "sky", "moon", "city", "fox", "king", "clock", "bread"]

PROMPTS = ["The capital of France is", "Once upon a time there was a", "2 + 2 ="]

TOLERANCE = 1e-4
"""Of log-probabilities."""

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
        self.assert_same_logprobs(other, len(self.ids))

    def assert_same_logprobs(self, other: Answer, count: int) -> None:
        """Raise AssertionError unless the first tokens have the same log-probabilities, and so have others there.

        Which of several equally likely tokens comes first, or fills a list up, is chance.
        """
        assert_values(self.logprobs[:count], other.logprobs[:count])
        for ours, theirs in zip(self.chosen_logprobs[:count], other.chosen_logprobs[:count], strict=True):
            assert_values(ours, theirs)
        for ours, theirs in zip(self.top_logprobs[:count], other.top_logprobs[:count], strict=True):
            one, two = (possible(side) for side in (ours, theirs))
            assert [entry[0] for entry in one] == pytest.approx([entry[0] for entry in two], abs=TOLERANCE)
            least = min((entry[0] for entry in one), default=0) + TOLERANCE
            assert_values(*(sorted(_above(side, least), key=itemgetter(1)) for side in (one, two)))


def possible(entries: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    """Without the tokens that fill up a list of alternatives where fewer are possible."""
    return _above(entries, FORBIDDEN)


def _above(entries: Sequence[Sequence[Any]], least: float) -> list[Sequence[Any]]:
    return [entry for entry in entries if entry[0] > least]


def assert_values(ours: Sequence[Sequence[Any]], theirs: Sequence[Sequence[Any]]) -> None:
    """Raise AssertionError unless both have the same tokens in the same order, with the same log-probabilities."""
    assert [entry[1] for entry in ours] == [entry[1] for entry in theirs]
    assert [entry[0] for entry in ours] == pytest.approx([entry[0] for entry in theirs], abs=TOLERANCE)


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
        end = time.monotonic() + 20 * slowdown()
        while not least <= (counts := self.cache())[name] <= most:
            assert time.monotonic() < end, counts
            time.sleep(0.02)
        return counts

    def flush(self) -> None:
        """Empty both caches; the engine refuses for a moment after its last answer."""
        end = time.monotonic() + 20 * slowdown()
        while (answer := self.http.post("/flush_cache")).status_code != 200:
            assert time.monotonic() < end, answer.text
            time.sleep(0.05)


def all_at_once(client: ReplayClient, asks: Sequence[Ask], replay: str, at_once: int = 8) -> list[Answer]:
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda ask: client.generate(ask, replay), asks))
