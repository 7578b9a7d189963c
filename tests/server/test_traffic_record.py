"""The record of a real server's traffic, read by the eviction bench."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from bench.eviction import __main__ as bench
from bench.eviction.report import Report
from bench.traces.sessions import load_sessions
from hive.server.server_process import ServerProcess
from tests.repetitions import LAYERS_FLAGS

pytestmark = pytest.mark.server


def test_recorded_traffic_is_replayed(launch_server: Callable[..., ServerProcess], tmp_path: Path) -> None:
    file = tmp_path / "traffic.jsonl"
    server = launch_server("--hive-record-traffic", str(file), *LAYERS_FLAGS)
    with httpx.Client(base_url=server.url, timeout=120, trust_env=False) as http:
        for turn in (1, 2, 3):
            for session in ("one", "two"):
                # Three blocks are the same for both.
                prompt = [*range(1000, 1200), *[{"one": 1, "two": 2}[session]] * 100 * turn]
                tag = {"agent": "guide", "session": session}
                params = {"max_new_tokens": 3, "ignore_eos": True, "custom_params": {"hive": tag}}
                answer = http.post("/generate", json={"input_ids": prompt, "sampling_params": params})
                assert answer.status_code == 200, answer.text
        assert http.delete("/hive/sessions/one").status_code == 200
        deadline = time.monotonic() + 30
        while (known := http.get("/hive/stats").json()["traffic_record"])["recorded"] < 7:
            assert time.monotonic() < deadline, known
            time.sleep(0.1)
        assert known == {"recorded": 7, "lost": 0}
    server.stop()
    text = file.read_text()
    assert "guide" not in text
    one, two = load_sessions(file)
    assert (one.ends, two.ends) == (True, False)
    assert [len(call.blocks) for call in one.calls] == [300 // 64, 400 // 64, 500 // 64]
    shared = [a == b for a, b in zip(one.calls[2].blocks, two.calls[2].blocks, strict=True)]
    assert shared == [True] * 3 + [False] * 4
    report = tmp_path / "report.json"
    bench.main(
        [
            *("--trace", str(file), "--json", str(report), "--pools", "640", "--seeds", "1"),
            *("--workers", "1", "--arms", "density"),
        ]
    )
    rows = Report.model_validate_json(report.read_text()).sessions
    assert {(row.sessions, row.requests) for row in rows} == {(2, 6)}
