"""Checkpoints, resuming, recordings: a run is its program and the answers that it got."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hive_frontend import (
    JournalError,
    TreeOfThoughts,
    Workspace,
    agent,
    choose,
    gather,
    gen,
    run,
    score,
    spawn,
    tool,
)
from hive_frontend.testing import FunctionModel, ScriptedModel, forbid_real_calls

ran: list[Any] = []


def look(text: str) -> dict[str, Any]:
    ran.append(text)
    return {"found": (text, 1)}


def strict(text: str) -> str:
    ran.append(text)
    if text.endswith("1"):
        raise LookupError(text)
    return text


@agent
async def helper(x: str) -> str:
    return await gen(f"help {x}")


@agent(supervisor=TreeOfThoughts(branch_at="ask", branching=3, breadth=2, limit=None))
async def program(question: str) -> list[Any]:
    out: list[Any] = []
    for turn in range(2):
        answer = await gen(f"{question}{turn}", name="ask")
        pair = await gather(gen("a"), spawn(helper, answer))
        try:
            out.append(await tool(strict, answer))
        except LookupError:
            out.append(await tool(look, answer))
        out.append((pair, await choose(["x", "y"])))
        score(int(answer[-1]))
    return out


def model() -> FunctionModel:
    return FunctionModel(lambda request: f"{request.text}:{request.sample}")


def test_a_finished_run_is_replayed_offline(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "run.jsonl"
    first = run(program, "q", model=model(), checkpoint=file)
    calls = len(ran)
    with forbid_real_calls():
        again = run(program, "q", replay=file)
    assert again.results == first.results
    assert again.seed == first.seed
    assert [node.model_dump() for node in again.tree.nodes] == [
        node.model_dump() for node in first.tree.nodes
    ]
    assert again.totals.tokens_generated == first.totals.tokens_generated
    assert len(ran) == calls, "tools are not called again"


@pytest.mark.parametrize("share", [0.0, 0.3, 0.8, 1.0])
def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path, share: float) -> None:
    file = tmp_path / "run.jsonl"
    whole = run(program, "q", model=model(), seed=4, checkpoint=file)
    lines = file.read_bytes().splitlines(keepends=True)
    kept = 1 + int(share * (len(lines) - 1))
    torn = lines[kept][:7] if kept < len(lines) else b""
    file.write_bytes(b"".join(lines[:kept]) + torn)
    scripted = ScriptedModel(lambda request: f"{request.text}:{request.sample}")
    resumed = run(program, "q", model=scripted, checkpoint=file)
    assert resumed.results == whole.results
    known = sum(b'"reply"' in line for line in lines[:kept])
    assert len(scripted.calls) == whole.totals.requests - known
    assert sorted(file.read_bytes().splitlines()) == sorted(line.rstrip() for line in lines)


PROGRAM = """
import os, signal, sys
from hive_frontend import TreeOfThoughts, agent, gen, run, score
from hive_frontend.testing import FunctionModel

calls = 0

def answer(request):
    global calls
    calls += 1
    if calls == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    return f"{len(request.text) * 7919 % 89 + request.sample}"

@agent(supervisor=TreeOfThoughts(branch_at="ask", branching=4, breadth=2, limit=None))
async def program(question):
    text = question
    for _ in range(3):
        text += await gen(text, name="ask")  # the call
        score(int(text[-1]))
    return text

result = run(program, "q", model=FunctionModel(answer), checkpoint=sys.argv[1])
print(result.value, calls)
"""


def start(script: Path, *args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(script), *map(str, args)], capture_output=True, text=True, env=os.environ
    )


def test_a_killed_process_goes_on_with_the_same_answer(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    whole = start(script, tmp_path / "whole.jsonl", -1)
    value, calls = whole.stdout.split()
    file = tmp_path / "run.jsonl"
    killed = start(script, file, 9)
    assert killed.returncode == -signal.SIGKILL
    resumed = start(script, file, -1)
    assert resumed.stdout.split() == [value, str(int(calls) - 8)], resumed.stderr

    script.write_text(PROGRAM.replace("text += await", "text = await").replace("  # the call", ""))
    changed = start(script, file, -1)
    assert changed.returncode == 1
    assert "JournalError" in changed.stderr
    assert "agent 'program' was changed since" in changed.stderr
    script.write_text("# moved down by a comment\n" + PROGRAM.replace("  # the call", ""))
    assert start(script, file, -1).stdout.split()[0] == value, "only what the code does counts"


def test_another_run_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    run(program, "q", model=model(), seed=1, checkpoint=file)
    other: list[tuple[str, dict[str, Any], str]] = [
        ("r", {}, "the arguments changed"),
        ("q", {"seed": 2}, "the seed changed"),
        ("q", {"supervisor": TreeOfThoughts(branch_at="ask", branching=2)}, "the supervisor changed"),
    ]
    for question, options, what in other:
        with pytest.raises(JournalError, match=what):
            run(program, question, model=model(), checkpoint=file, **options)
    with pytest.raises(JournalError, match="the agent changed"):
        run(helper, "q", model=model(), checkpoint=file)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="none does not exist; check the path"):
        run(helper, "q", replay=tmp_path / "none")
    (tmp_path / "text").write_text("hello\n")
    with pytest.raises(JournalError, match="text:1: this is not a line of a journal"):
        run(helper, "q", model=model(), checkpoint=tmp_path / "text")
    with pytest.raises(ValueError, match="exclude each other"):
        run(helper, "q", replay="a", checkpoint="b")


def test_a_recording_that_ends_early_says_so(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    run(program, "q", model=model(), checkpoint=file)
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:4]))
    with pytest.raises(JournalError, match="has no answer for state"):
        run(program, "q", replay=file)


def test_results_that_cannot_be_kept_say_so(tmp_path: Path) -> None:
    @agent
    async def odd() -> Any:
        return await tool(lambda: lambda: 1)

    with pytest.raises(JournalError, match="the result of a tool, of type function, cannot be stored"):
        run(odd, model=model(), checkpoint=tmp_path / "run.jsonl")


def test_workspaces_are_built_again(tmp_path: Path) -> None:
    def write(workspace: Workspace, text: str) -> int:
        workspace.write("log", text)
        return len(text)

    @agent
    async def editor() -> str:
        workspace = Workspace()
        await tool(write, workspace, await gen("q"))
        await gen("again")
        return workspace.read("log")

    file = tmp_path / "run.jsonl"
    first = run(editor, model=model(), checkpoint=file)
    assert run(editor, replay=file).value == first.value == "q:0"


def test_traces_tell_everything(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    result = run(program, "q", model=model(), trace=file)
    events = [json.loads(line) for line in file.read_text().splitlines()]
    assert events[-1]["kind"] == "finished"
    assert events[-1]["fired"] == result.states_fired
    assert {event["agent"] for event in events[:-1]} == {"program", "helper"}
    assert sum(event["kind"] == "fired" for event in events) == result.states_fired
