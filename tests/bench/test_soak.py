"""The soak: its arithmetic, its traffic against a server that is all right or not, and a short run of the real one."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.soak.__main__ import main
from bench.soak.report import WINDOWS, Memory, Report, drifts, quantile, windows
from bench.soak.traffic import SHARES, Client, Kind, Outcome
from hive.server.server_process import ServerProcess

BEGAN = 1000.0
"""The clock's reading at a beginning."""


def run_of(seconds: list[float], replayed: list[int], sizes: list[int]) -> tuple[list[Outcome], list[Memory]]:
    """A hundred requests in each quarter of 100 s, of 10 tokens each, and a look at memory every second."""
    outcomes = [
        Outcome(
            "plain",
            BEGAN + quarter * 25 + n / 4,
            seconds[quarter],
            None,
            replayed[quarter],
            10 - replayed[quarter],
        )
        for quarter in range(4)
        for n in range(100)
    ]
    return outcomes, [Memory(BEGAN + second, sizes[second // 25]) for second in range(100)]


def test_drift_compares_the_last_quarter_with_the_second() -> None:
    outcomes, memory = run_of([9.0, 1.0, 5.0, 1.5], [0, 4, 9, 5], [1, 1000, 5000, 1100])
    drift = drifts(outcomes, memory, BEGAN, BEGAN + 100)
    assert (drift["p50_drift"], drift["p99_drift"]) == (0.5, 0.5)
    assert drift["rss_drift"] == pytest.approx(0.1)
    assert drift["hit_ratio_drift"] == pytest.approx(0.1)


def test_what_was_not_measured_has_no_drift() -> None:
    outcomes, _ = run_of([1.0] * 4, [0] * 4, [1] * 4)
    failed = [Outcome("plain", outcome.ended, 1.0, "lost") for outcome in outcomes]
    drift = drifts(failed, [], BEGAN, BEGAN + 100)
    assert (drift["rss_drift"], drift["p50_drift"], drift["p99_drift"], drift["hit_ratio_drift"]) == (
        None,
        None,
        None,
        None,
    )


def test_windows_hold_every_request_once() -> None:
    outcomes, memory = run_of([1.0, 2.0, 3.0, 4.0], [1, 2, 3, 4], [1, 2, 3, 4])
    outcomes += [
        Outcome("bad", BEGAN + 100.5, 60.0),
        Outcome("dropped", BEGAN + 99, 70.0),
        Outcome("chat", BEGAN + 101, 0.1, "lost"),
    ]
    found = windows(outcomes, memory, BEGAN, BEGAN + 100)
    assert len(found) == WINDOWS
    assert sum(window.requests for window in found) == len(outcomes)
    assert [window.errors for window in found] == [0] * (WINDOWS - 1) + [1]
    assert [window.p99_s for window in found] == [1, 1, 2, 2, 3, 3, 4, 4], (
        "dropped and bad ones say nothing of speed"
    )
    assert [window.hit_ratio for window in found] == pytest.approx([0.1, 0.1, 0.2, 0.2, 0.3, 0.3, 0.4, 0.4])
    assert (found[0].from_s, found[-1].to_s) == (0.0, 100.0)


def test_quantiles_are_values_that_were_seen() -> None:
    values = [float(n) for n in range(1, 101)]
    random.Random(0).shuffle(values)
    assert (quantile(values, 0.5), quantile(values, 0.99), quantile(values, 1.0)) == (50.0, 99.0, 100.0)
    assert (quantile([7.0], 0.5), quantile([], 0.5)) == (7.0, None)


class Stand:
    """A server that answers as it must, or everything with one status."""

    def __init__(self, status: int | None = None) -> None:
        self.status = status
        self.seen: list[tuple[str, str, Any]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        try:
            body = json.loads(request.content)
        except ValueError:
            body = None
        self.seen.append((request.method, request.url.path, body))
        if self.status is not None:
            return httpx.Response(self.status, text="no")
        meta = {"hive": {"tokens_replayed": 1, "tokens_generated": 2}}
        if request.method == "DELETE":
            return httpx.Response(200, json={"requests": 2})
        if request.url.path == "/v1/chat/completions":
            return httpx.Response(200, json={"choices": [{"meta_info": meta}]})
        answer = {"text": "yes, sir.", "meta_info": meta}
        params = (body or {}).get("sampling_params") or {}
        if isinstance(params, dict) and params.get("n") == 3:
            return httpx.Response(200, json=[answer] * 3)
        if (body or {}).get("stream"):
            return httpx.Response(200, text="data: {}\n\n" * 9)
        return httpx.Response(200, json=answer)


def client_of(stand: Stand, seed: int = 0) -> Client:
    return Client(httpx.AsyncClient(base_url="http://soak", transport=httpx.MockTransport(stand)), seed)


async def test_every_kind_comes_and_a_seed_repeats_them() -> None:
    runs = []
    for _ in range(2):
        stand = Stand()
        client = client_of(stand)
        outcomes = [await client.go_on() for _ in range(200)]
        runs.append([body for _, path, body in stand.seen if path == "/generate"])
        kinds = Counter(outcome.kind for outcome in outcomes)
        assert set(kinds) == set(SHARES)
        # This server refuses nothing, as it must.
        assert {outcome.kind for outcome in outcomes if outcome.error} == {"bad"}
        tokens = {
            outcome.kind: (outcome.tokens_replayed, outcome.tokens_generated)
            for outcome in outcomes
            if outcome.timed
        }
        assert tokens["plain"] == (1, 2)
        assert tokens["samples"] == (3, 6)
        assert tokens["session"] == (2, 4)
    prompts = [[body.get("text") for body in bodies if isinstance(body, dict)] for bodies in runs]
    assert prompts[0] == prompts[1]


@pytest.mark.parametrize(("status", "good"), [(500, set[Kind]()), (400, {"bad"})])
async def test_what_is_not_as_it_must_be_is_an_error(status: int, good: set[Kind]) -> None:
    client = client_of(Stand(status))
    outcomes = [await client.go_on() for _ in range(100)]
    assert {outcome.kind for outcome in outcomes if outcome.error is None} == good
    assert all(
        outcome.error.startswith(f"{outcome.kind}: Unexpected") for outcome in outcomes if outcome.error
    )


def test_wrong_options_are_told_before_anything_is_started(tmp_path: Path) -> None:
    for arguments in (
        ["--seconds", "0", "--json", str(tmp_path / "r.json")],
        ["--seconds", "1", "--json", str(tmp_path)],
    ):
        with pytest.raises(SystemExit) as stopped:
            main(arguments)
        assert stopped.value.code == 2
    with pytest.raises(SystemExit, match="does not answer"):
        main(["--seconds", "0.1", "--json", str(tmp_path / "r.json"), "--url", "http://127.0.0.1:9"])


def test_a_short_soak_of_the_real_server(server: ServerProcess, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    main(["--seconds", "12", "--json", str(file), "--url", server.url, "--concurrency", "3"])
    report = Report.model_validate_json(file.read_text())
    assert (report.errors, report.error_examples, report.problems) == (0, [], [])
    assert (
        report.requests
        == sum(report.by_kind.values())
        == sum(window.requests for window in report.windows)
        > 10
    )
    assert report.rss_drift is not None
    assert abs(report.rss_drift) < 0.5
    assert report.logits_cache["lookups"] > 0
    assert server.url not in file.read_text()
