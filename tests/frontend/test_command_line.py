"""The command `hive`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hive_frontend import BestOfN, RunStore, agent, ask_human, gather, gen, run, tool
from hive_frontend.command_line import main
from hive_frontend.testing import FunctionModel

MODEL = FunctionModel(lambda request: f"draft {request.sample}")


def count(text: str) -> dict[str, int]:
    return {"letters": len(text)}


@agent(supervisor=BestOfN(2, at="draft"))
async def mail(to: str) -> Any:
    text = await gen("Write.", name="draft")
    facts, stars = await gather(tool(count, text), ask_human(f"Stars of {text}?", schema=int))
    return [text, facts, stars, await ask_human("Send?", choices=["yes", "no"])]


@pytest.fixture
def hive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*words: str, status: int = 0) -> str:
        capsys.readouterr()
        assert main(["runs", "--store", str(tmp_path / "runs.db"), *words]) == status
        printed = capsys.readouterr()
        assert bool(printed.err) == bool(status)
        return printed.out + printed.err

    return call


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "runs.db")


def test_a_run_is_answered_from_the_command_line(hive: Any, store: RunStore) -> None:
    run(mail, "all", model=MODEL, store=store, run_id="monday")
    listed = hive("list").splitlines()
    assert listed[0].split() == ["RUN", "AGENT", "STATUS", "UPDATED"]
    assert listed[1].startswith("monday  mail   waiting  2")
    assert listed[2:] == [
        '  0.0.0/1  Stars of draft 0?  ({"type": "integer"})',
        '  0.1.0/1  Stars of draft 1?  ({"type": "integer"})',
    ]
    assert "Input should be a valid integer" in hive("answer", "monday", "0.0.0/1", "many", status=1)
    assert hive("answer", "monday", "0.0.0/1", "5") == ""
    assert "it has questions at 0.1.0/1" in hive("answer", "monday", "0.0.0/1", "5", status=1)
    hive("answer", "monday", "0.1.0/1", "3")
    assert "  stopped  " in hive("list")
    run(mail, "all", model=MODEL, store=store, run_id="monday")
    assert "'yes' or 'no'" in hive("show", "monday")
    for at in ("0.0.0.0", "0.1.0.0"):
        hive("answer", "monday", at, "yes")
    result = run(mail, "all", model=MODEL, store=store, run_id="monday")
    assert result.value == ["draft 0", {"letters": 7}, 5, "yes"]
    shown = hive("show", "monday").splitlines()
    assert shown[:3] == [
        "agent:       mail(to='all')",
        "status:      finished",
        f"outcome:     {result.value!r}",
    ]
    assert "0.0  model  'Write.' -> \"draft 0\"" in shown
    assert "0.0.0/0  tool  'count', argument 0 'draft 0' -> {\"letters\": 7}" in shown
    assert '0.0.0.0  human  Send? -> "yes"' in shown


def test_runs_are_forked_and_deleted(hive: Any, store: RunStore) -> None:
    def five(question: Any) -> Any:
        return "yes" if question.choices else 5

    run(mail, "all", model=MODEL, store=store, run_id="monday", on_question=five)
    assert hive("fork", "monday", "0.0.0/0", '{"letters": 0}', "--run-id", "zero") == "zero\n"
    assert "forked from: monday at 0.0.0/0" in hive("show", "zero")
    assert run(mail, "all", model=MODEL, store=store, run_id="zero", on_question=five).value[1] == {
        "letters": 0
    }
    assert "must be JSON, not 'none'; quote a text: \"none\"" in hive(
        "fork", "monday", "0.0.0/0", "none", status=1
    )
    new = hive("fork", "monday", "0.0", "other").strip()
    assert new.startswith("monday-")
    assert hive("list", "--status", "stopped").splitlines()[1].startswith(new)
    assert hive("delete", "monday", "zero", new) == ""
    assert len(hive("list").splitlines()) == 1
    assert "has no run 'monday'; list the runs" in hive("delete", "monday", status=1)


def test_mistakes_are_explained(hive: Any) -> None:
    assert "does not exist; check the path" in hive("list", status=1)
    with pytest.raises(SystemExit):
        main(["runs", "lift"])


def test_it_is_installed() -> None:
    command = shutil.which("hive", path=Path(sys.executable).parent)
    assert command is not None
    done = subprocess.run([command, "runs", "--help"], capture_output=True, text=True, check=True)
    assert "answer a question" in done.stdout
