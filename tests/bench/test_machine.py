"""What reports say of the machine and the command."""

from __future__ import annotations

import shlex

import pytest

from bench.harness.machine import public_command


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (["--json", "/home/me/out/x.json", "--quick"], "--json x.json --quick"),
        (["--json=/home/me/x.json"], "--json=x.json"),
        (["--hive-url", "http://secret.host:3000"], "--hive-url URL"),
        (["--hive-url=http://secret.host:3000"], "--hive-url=URL"),
        (
            ["--server-flags", "--load-format dummy --model-path /models/qwen --tp 2"],
            "--server-flags '--load-format dummy --model-path qwen --tp 2'",
        ),
        (["--methods", "tot", "mcts", "--seed", "0"], "--methods tot mcts --seed 0"),
        (["--server-flags", "it's"], """--server-flags 'it'"'"'s'"""),
    ],
)
def test_a_command_is_shown_without_folders_and_addresses(given: list[str], shown: str) -> None:
    command = public_command(given, "bench.some")
    assert command == f"python -m bench.some {shown}"
    assert len(shlex.split(command)) == 3 + len(given)
