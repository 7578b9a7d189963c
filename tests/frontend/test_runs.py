"""Runs in a store: listed, locked, killed, resumed, forked and deleted."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hive_frontend import (
    BestOfN,
    JournalError,
    ModelError,
    Request,
    RunStore,
    TreeOfThoughts,
    agent,
    gather,
    gen,
    run,
    score,
    tool,
)
from hive_frontend.operations.transition import Key
from hive_frontend.runs.history import edited
from hive_frontend.testing import FunctionModel, ScriptedModel

keys: list[str] = []


def note(text: str) -> list[str]:
    return [text]


@agent(supervisor=TreeOfThoughts(branch_at="ask", branching=2, breadth=2, limit=None))
async def program(question: str) -> list[Any]:
    out: list[Any] = []
    for turn in range(2):
        answer = await gen(f"{question}{turn}", name="ask")
        out.append(await gather(gen(f"about {answer}"), tool(note, answer)))
        score(int(answer[-1]))
    return out


def model() -> FunctionModel:
    return FunctionModel(lambda request: f"{request.text}:{request.sample}")


def goes_down(request: Request) -> str:
    if request.text == "about q1:1":
        raise ModelError("the server is gone")
    return f"{request.text}:{request.sample}"


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "deep" / "runs.db")


def test_many_runs_are_listed_and_deleted(store: RunStore) -> None:
    first = run(program, "q", model=model(), seed=1, store=store, run_id="first")
    second = run(program, "r", model=model(), store=str(store.path))
    assert first.run_id == "first"
    assert second.run_id is not None
    assert second.run_id.startswith("program-")
    assert [each.id for each in store.runs("finished")] == ["first", second.run_id]
    assert store.runs("failed") == []
    found = store.get("first")
    assert found.agent == "program"
    assert found.arguments == {"question": "'q'"}
    assert found.outcome == repr(first.value)
    assert found.created <= found.updated
    store.delete("first")
    assert [each.id for each in store.runs()] == [second.run_id]
    with pytest.raises(JournalError, match=r"runs\.db has no run 'first'"):
        store.delete("first")
    again = run(program, "other", model=model(), store=store, run_id="first")
    assert again.value != first.value, "a deleted run leaves nothing behind"


def test_a_failed_run_is_resumed(store: RunStore) -> None:
    whole = run(program, "q", model=model(), seed=4)
    with pytest.raises(ModelError):
        run(program, "q", model=FunctionModel(goes_down), seed=4, store=store, run_id="x", max_concurrency=1)
    found = store.get("x")
    assert (found.status, found.outcome) == ("failed", "ModelError: the server is gone")
    known = sum(answer.kind == "model" for answer in store.history("x"))
    scripted = ScriptedModel(lambda request: f"{request.text}:{request.sample}")
    assert run(program, "q", model=scripted, store=store, run_id="x").results == whole.results
    assert len(scripted.calls) == whole.totals.requests - known > 0
    assert store.get("x").status == "finished"
    with pytest.raises(JournalError, match=r"the seed changed.*give another run_id to start a new run"):
        run(program, "q", model=model(), seed=5, store=store, run_id="x")
    assert store.get("x").status == "finished", "a refused run changes nothing"


def test_a_run_is_executed_once_at_a_time(store: RunStore) -> None:
    @agent
    async def outer() -> str:
        return await tool(inner)

    def inner() -> str:
        assert store.get("x").status == "running"
        with pytest.raises(JournalError, match=r"run 'x' of .*runs\.db is being executed"):
            run(outer, model=model(), store=store, run_id="x")
        with pytest.raises(JournalError, match="is being executed"):
            store.delete("x")
        run(program, "q", model=model(), store=store, run_id="y")
        return "done"

    assert run(outer, model=model(), store=store, run_id="x").value == "done"
    assert [each.status for each in store.runs()] == ["finished", "finished"]


def test_stores_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=r"the store .*none does not exist; check the path"):
        RunStore(tmp_path / "none").runs()
    (tmp_path / "text").write_text("hello, this is not a database at all\n" * 40)
    with pytest.raises(JournalError, match="text cannot be used: file is not a database"):
        run(program, "q", model=model(), store=tmp_path / "text")
    connection = sqlite3.connect(tmp_path / "other")
    connection.execute("CREATE TABLE t (x)")
    connection.close()
    with pytest.raises(JournalError, match="other is not a store of runs of this version of Hive"):
        RunStore(tmp_path / "other").runs()
    with pytest.raises(ValueError, match="checkpoint, store and replay exclude each other"):
        run(program, "q", model=model(), store="a", checkpoint="b")
    with pytest.raises(ValueError, match=r"give store=\.\.\., too"):
        run(program, "q", model=model(), run_id="a")
    with pytest.raises(ValueError, match="run_id"):
        run(program, "q", model=model(), store=tmp_path / "runs.db", run_id="with blanks")


def test_errors_of_tools_are_not_those_of_the_store(store: RunStore) -> None:
    def broken() -> None:
        raise sqlite3.OperationalError("another database")

    @agent
    async def uses_a_database() -> None:
        await tool(broken)

    with pytest.raises(sqlite3.OperationalError, match="another database"):
        run(uses_a_database, model=model(), store=store, run_id="x")
    assert store.get("x").outcome == "OperationalError: another database"


def test_many_threads_use_one_new_store(store: RunStore) -> None:
    def work(number: int) -> Any:
        return run(program, f"q{number}", model=model(), seed=1, store=store, run_id=f"r{number}").value

    with ThreadPoolExecutor(8) as pool:
        values = list(pool.map(work, range(8)))
    assert values == [run(program, f"q{number}", model=model(), seed=1).value for number in range(8)]
    assert {each.status for each in store.runs()} == {"finished"}


PROGRAM = """
import os, signal, sys, time
from hive_frontend import TreeOfThoughts, agent, gen, run, score, tool
from hive_frontend.testing import FunctionModel

def pay(amount, idempotency_key):
    paid, kill_at = sys.argv[1] + ".paid", int(sys.argv[2])
    with open(paid, "a") as file:
        file.write(f"{idempotency_key} {amount}\\n")
    if 0 < kill_at <= sum(1 for _ in open(paid)):
        os.kill(os.getpid(), signal.SIGKILL)
    if kill_at < 0:
        time.sleep(-kill_at)
    return f"paid {amount}"

@agent(supervisor=TreeOfThoughts(branch_at="ask", branching=3, breadth=2, limit=None))
async def program(question):
    text = question
    for _ in range(2):
        text += await gen(text, name="ask")
        text += await tool(pay, len(text), idempotency_key=True)
        score(len(text))
    return text

model = FunctionModel(lambda request: "x" * (len(request.text) * 7919 % 5 + request.sample))
print(run(program, "q", model=model, store=sys.argv[1], run_id="r").value)
"""


def start(script: Path, *args: object) -> subprocess.Popen[str]:
    words = [sys.executable, str(script), *map(str, args)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def payments(store: Path) -> list[list[str]]:
    return [line.split() for line in Path(f"{store}.paid").read_text().splitlines()]


@pytest.mark.parametrize("kill_at", [1, 3, 7])
def test_a_killed_process_leaves_no_lock_and_tools_get_the_same_keys(tmp_path: Path, kill_at: int) -> None:
    script, whole, store = tmp_path / "program.py", tmp_path / "whole.db", tmp_path / "runs.db"
    script.write_text(PROGRAM)
    value, errors = start(script, whole, 0).communicate()
    assert value, errors
    killed = start(script, store, kill_at)
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    assert RunStore(store).get("r").status == "stopped"
    resumed, errors = start(script, store, 0).communicate()
    assert resumed == value, errors
    assert RunStore(store).get("r").status == "finished"
    once = payments(whole)
    assert len({key for key, _ in once}) == len(once), "every branch has its own key"
    made = payments(store)
    assert len(made) > len(once), "the tool was called again"
    assert len({key for key, _ in made}) == len(once), "with the same keys"
    assert len({(key, amount) for key, amount in made}) == len(once), "for the same calls"
    assert {key for key, _ in made}.isdisjoint(key for key, _ in once), "another run has other keys"


def test_other_processes_see_a_running_run(tmp_path: Path) -> None:
    script, path = tmp_path / "program.py", tmp_path / "runs.db"
    script.write_text(PROGRAM)
    running = start(script, path, -60)
    try:
        until = time.monotonic() + 30
        while not Path(f"{path}.paid").exists() and time.monotonic() < until:
            time.sleep(0.05)
        assert RunStore(path).get("r").status == "running"
        assert RunStore(path).history("r")[0].kind == "model"
        _, errors = start(script, path, 0).communicate()
        assert "is being executed, by this or another process" in errors
    finally:
        os.kill(running.pid, signal.SIGKILL)
        running.communicate()
    assert RunStore(path).get("r").status == "stopped"


def keyed(text: str, *, idempotency_key: str) -> str:
    keys.append(idempotency_key)
    return text


@agent(supervisor=BestOfN(2, at="keyed"))
async def two_samples() -> list[str]:
    return [
        *await gather(
            tool(keyed, "a", idempotency_key=True), tool(keyed, "a", idempotency_key=True), name="keyed"
        )
    ]


def test_parts_samples_and_runs_have_keys_of_their_own(tmp_path: Path) -> None:
    keys.clear()
    for _ in range(2):
        run(two_samples, model=model(), seed=1)
    run(two_samples, model=model(), seed=1, checkpoint=tmp_path / "run.jsonl")
    assert len(set(keys)) == len(keys) == 12
    with pytest.raises(TypeError, match="idempotency_key must be True or False, not 'mine'"):
        tool(keyed, "a", idempotency_key="mine")  # type: ignore[call-overload]


# Forks


def test_a_fork_goes_on_with_another_answer(store: RunStore) -> None:
    run(program, "q", model=model(), seed=1, store=store, run_id="x")
    before = store.history("x")
    new = store.fork("x", "0.1", "q0:9", run_id="y")
    assert new == "y"
    assert store.get("y").forked_from == "x at 0.1"
    assert store.get("y").status == "stopped"
    scripted = ScriptedModel(lambda request: f"{request.text}:{request.sample}")
    result = run(program, "q", model=scripted, store=store, run_id="y")
    assert ["about q0:9:0", ["q0:9"]] in [found.value[0] for found in result.results]
    assert store.history("x") == before, "the old run stays as it is"
    # The answers of the other branch are shared.
    assert {call.state.split("/")[0][:3] for call in scripted.calls} == {"0.1"}
    replaced = [answer for answer in store.history("y") if answer.at == "0.1"]
    assert [(answer.kind, answer.value) for answer in replaced] == [("model", "q0:9")]


def test_the_result_of_a_tool_is_replaced(store: RunStore) -> None:
    first = run(program, "q", model=model(), seed=1, store=store, run_id="x")
    new = store.fork("x", "0.0.0/1", {"edited": 1})
    result = run(program, "q", model=model(), store=store, run_id=new)
    assert ["about q0:0:0", {"edited": 1}] in [found.value[0] for found in result.results]
    assert len(result.results) == len(first.results)


def test_forks_that_cannot_be_made(store: RunStore) -> None:
    run(program, "q", model=model(), seed=1, store=store, run_id="x")
    bad: list[tuple[str, Any, str]] = [
        ("7.7", "a", "no answer at '7.7'"),
        ("0.1", 5, "the answer of a model, at 0.1, is text, not 5"),
        ("0.0.0/1", (1, 2), r"the new result of the tool at 0.0.0/1 must be plain JSON data, not \(1, 2\)"),
    ]
    for at, value, why in bad:
        with pytest.raises(JournalError, match=why):
            store.fork("x", at, value)
    with pytest.raises(JournalError, match="has a run 'x' already"):
        store.fork("x", "0.1", "a", run_id="x")
    assert [each.id for each in store.runs()] == ["x"], "nothing is left of them"


def test_what_follows_an_answer_is_left_out() -> None:
    def entry(state: str, firing: int, part: str = "") -> dict[str, Any]:
        return {"key": list(Key(state, firing, part)), "asked": {}, "json": 0}

    entries = [
        {"agent": "a"},
        entry("0", 0),
        entry("0.0", 0),
        entry("0.0", 1),
        entry("0.0.0", 0),
        entry("0.0.0.-1.0", 0),
        entry("0.1", 0),
        entry("0.-1.4", 0),
        {"agent": "b"},
        entry(f"h:{'a' * 32}", 2),
    ]
    kept = edited(entries, "0.0.0", 5)
    states = [Key(*each["key"]).at for each in kept if "key" in each]
    assert states == ["0.0", "0.0.0", "0.0.1", "0.1.0"]
    assert [each["agent"] for each in kept if "agent" in each] == ["a", "b"]
    inner = [Key(*each["key"]).at for each in edited(entries, "0.0.0.-1.0.0", 5) if "key" in each]
    assert inner == ["0.0", "0.0.0", "0.0.1", "0.0.0.0", "0.0.0.-1.0.0", "0.1.0"]
