"""Where events leave, and where they are found."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from hive.server.events.endpoint import check, of_rank, private, to_connect


@pytest.mark.parametrize(
    "endpoint", ["auto", "off", "ipc:///tmp/x", "tcp://127.0.0.1:5558", "tcp://*:1", "tcp://[::]:5558"]
)
def test_what_is_accepted(endpoint: str) -> None:
    assert check(endpoint) == endpoint


@pytest.mark.parametrize(
    "endpoint",
    ["", "on", "tcp://host", "tcp://host:0", "tcp://host:70000", "udp://a:1", "ipc://", "tcp://a b:1"],
)
def test_what_is_refused(endpoint: str) -> None:
    with pytest.raises(ValueError, match="must be 'auto', 'off', ipc://PATH or tcp://HOST:PORT, got"):
        check(endpoint)


@pytest.mark.parametrize(
    ("endpoint", "rank", "expected"),
    [
        ("tcp://*:5558", 0, "tcp://*:5558"),
        ("tcp://*:5558", 3, "tcp://*:5561"),
        ("tcp://[::1]:5558", 1, "tcp://[::1]:5559"),
        ("ipc:///tmp/x", 0, "ipc:///tmp/x"),
        ("ipc:///tmp/x", 2, "ipc:///tmp/x.2"),
    ],
)
def test_each_rank_has_its_own(endpoint: str, rank: int, expected: str) -> None:
    assert of_rank(endpoint, rank) == expected


def test_wildcards_are_found_on_loopback() -> None:
    assert to_connect("tcp://*:5558") == to_connect("tcp://0.0.0.0:5558") == "tcp://127.0.0.1:5558"
    assert to_connect("tcp://[::]:5558") == "tcp://[::1]:5558"
    assert to_connect("tcp://10.0.0.1:5558") == "tcp://10.0.0.1:5558"


def test_a_private_folder_is_the_owners_and_goes_when_its_process_is_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with subprocess.Popen(["true"]) as dead:
        dead.wait()
    (tmp_path / f"hive-{dead.pid}-left").mkdir()
    others = [tmp_path / "hive-notes-of-mine", tmp_path / f"hive-{os.getpid()}-mine"]
    for folder in others:
        folder.mkdir()
    folder = Path(private().removeprefix("ipc://")).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    assert set(tmp_path.iterdir()) == {folder, *others}
