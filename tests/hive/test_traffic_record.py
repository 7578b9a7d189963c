"""The record of a server's traffic: what it says, what it hides, and that no disk can stop the server."""

from __future__ import annotations

import json
import logging
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.traces.sessions import load_sessions
from hive.server.traffic_record import BLOCK, MAX_WAITING, Ended, TrafficRecord

_TOKENS = st.lists(st.integers(0, 3), max_size=4 * BLOCK)


def ended(
    prompt: Sequence[int], session: str | None = "run 1", at: float = 10.0, agent: str | None = "a"
) -> Ended:
    return Ended(at, at + 2.5, agent, session, None, array("q", prompt), 7, "stop")


def written(path: Path, *requests: Ended, end: str | None = None) -> list[dict[str, Any]]:
    """The lines of a record of some requests."""
    record = TrafficRecord(path)
    for request in requests:
        record.add(request)
    if end is not None:
        record.end_session(end)
    record.close()
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_says_when_and_how_long_but_names_nobody(tmp_path: Path) -> None:
    (line,) = written(tmp_path / "r.jsonl", ended(range(2 * BLOCK + 5)))
    times, names = {"t", "api_time"}, {"agent", "session", "tenant"}
    assert line.keys() == times | names | {"in", "out", "stop", "kept", "new"}
    assert (line["api_time"], line["in"], line["out"], line["stop"]) == (2.5, 2 * BLOCK + 5, 7, "stop")
    assert (line["kept"], len(line["new"]), line["tenant"]) == (0, 2, None)
    assert "run 1" not in (tmp_path / "r.jsonl").read_text()
    # Another record of the same prompt has other hashes: nobody can test what a prompt said.
    (other,) = written(tmp_path / "other.jsonl", ended(range(2 * BLOCK + 5)))
    assert not {*line["new"]} & {*other["new"]}
    assert line["session"] != other["session"]
    assert (tmp_path / "r.jsonl").stat().st_mode & 0o777 == 0o600


@given(st.lists(st.tuples(_TOKENS, st.sampled_from(["x", "y", None])), min_size=1, max_size=6))
@settings(deadline=None, max_examples=50)
def test_blocks_are_equal_where_the_prompts_are(
    tmp_path_factory: pytest.TempPathFactory, asked: list[tuple[list[int], str | None]]
) -> None:
    path = tmp_path_factory.mktemp("record") / "r.jsonl"
    written(path, *(ended(prompt, session) for prompt, session in asked))
    calls = [call for session in load_sessions(path) for call in session.calls]
    # Sessions come in the order of their first requests.
    names = dict.fromkeys(
        session if session is not None else str(at) for at, (_, session) in enumerate(asked)
    )
    prompts = [
        prompt
        for name in names
        for at, (prompt, session) in enumerate(asked)
        if name in (session, str(at) if session is None else None)
    ]
    known: dict[tuple[int, ...], int] = {}
    for call, prompt in zip(calls, prompts, strict=True):
        assert len(call.blocks) == len(prompt) // BLOCK
        for number, block in enumerate(call.blocks, start=1):
            assert known.setdefault(tuple(prompt[: number * BLOCK]), block) == block
    assert len({*known.values()}) == len(known)


def test_sessions_are_read_back_with_their_pauses(tmp_path: Path) -> None:
    written(
        tmp_path / "r.jsonl",
        ended(range(BLOCK), "x", at=10),
        ended(range(2 * BLOCK), "y", at=11),
        ended(range(3 * BLOCK), "x", at=20),
        end="x",
    )
    x, y = load_sessions(tmp_path / "r.jsonl")
    assert (x.starts_s, y.starts_s) == (0, 1)
    assert (x.ends, y.ends) == (True, False)
    assert [call.think_s for call in x.calls] == [0, pytest.approx(7.5)]
    assert x.calls[1].blocks[: len(x.calls[0].blocks)] == x.calls[0].blocks


def test_a_full_disk_costs_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    record = TrafficRecord(Path("/dev/full"))
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            record.add(ended(range(BLOCK)))
        record.close()
    assert record.summary() == {"recorded": 0, "lost": 5}
    assert [entry.levelname for entry in caplog.records] == ["WARNING"]
    assert "the record of traffic /dev/full ends here, after 0 lines" in caplog.text


def test_a_file_has_a_largest_size_and_whole_lines(tmp_path: Path) -> None:
    record = TrafficRecord(tmp_path / "r.jsonl", max_bytes=500)
    for _ in range(9):
        record.add(ended(range(BLOCK)))
    record.close()
    lines = (tmp_path / "r.jsonl").read_text().splitlines()
    assert record.summary() == {"recorded": len(lines), "lost": 9 - len(lines)}
    assert 0 < len(lines) < 9
    assert all(json.loads(line)["out"] == 7 for line in lines)


def test_a_slow_disk_makes_nobody_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = TrafficRecord(tmp_path / "r.jsonl")
    monkeypatch.setattr(record, "_waiting", type(record._waiting)(maxsize=3))
    for _ in range(5):
        record.add(ended(range(BLOCK)))
    assert record.summary()["lost"] == 2
    assert MAX_WAITING > 3


def test_a_restarted_server_appends(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    written(path, ended(range(BLOCK)))
    assert len(written(path, ended(range(BLOCK)))) == 2
    assert [len(session.calls) for session in load_sessions(path)] == [1, 1]


def test_a_file_that_cannot_be_opened_is_said(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Is a directory"):
        TrafficRecord(tmp_path)
