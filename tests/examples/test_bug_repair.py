"""The two agents repair their project, alike in a search and without one, and each branch has its own helper."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hive_frontend import MCTS, Once, Request, RunResult, Session, run
from hive_frontend.testing import ScriptedModel
from typer import Typer
from typer.testing import CliRunner

from examples import bug_repair
from examples.bug_repair import CHECKS, PROJECT, context_gather, edits_of, patched, verify
from hive.server.server_process import ServerProcess

EVEN = "stats.py:7: if len(ordered) % 2 == 0:"
FIRST = "ordering.py:4: place = 0"


def knows(request: Request) -> str:
    """Looks where the tests point to, and writes the right patch if it is among the edits."""
    choices = request.sampling.choices
    if request.name == "look_up":
        return next((choice for choice in choices if choice in (" ascending", " median")), choices[0])
    done = "% 2 == 0" in request.text, "place = 0" in request.text
    right = [patch for patch, seen in ((EVEN, done[0]), (FIRST, done[1])) if patch in choices and not seen]
    return right[0] if right else choices[0]


def knows_one_in_three(request: Request) -> str:
    """Writes the right patch only as the third sample of a state."""
    if request.name == "look_up" or request.sample == 2:
        return knows(request)
    return request.sampling.choices[-1 - request.sample]


def test_the_project_has_exactly_two_bugs() -> None:
    before = verify(PROJECT)
    assert 0 < before.passed < len(CHECKS)
    assert len(before.output.splitlines()) == len(CHECKS) - before.passed
    for patch in (EVEN, FIRST):
        assert not verify(patched(PROJECT, patch)).is_clean
    assert verify(patched(patched(PROJECT, EVEN), FIRST)).is_clean


def test_every_edit_applies_and_keeps_its_place() -> None:
    for name in bug_repair.defined_in(PROJECT):
        for patch in edits_of(bug_repair.search(PROJECT, name)):
            file, number, line = patch.split(":", 2)
            after = patched(PROJECT, patch)
            changed = [
                (old, new)
                for old, new in zip(PROJECT[file].splitlines(), after[file].splitlines(), strict=True)
                if old != new
            ]
            assert len(changed) == 1
            assert after[file].splitlines()[int(number) - 1].strip() == line.strip()


def test_tests_that_never_end_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bug_repair, "TEST_S", 0.5)
    report = verify(patched(PROJECT, "ordering.py:6: place += 0"))
    assert (report.passed, report.is_clean) == (0, False)
    assert "come to an end" in report.output


async def test_a_run_without_a_search_is_the_ordinary_coroutine() -> None:
    native, searched = ScriptedModel(knows), ScriptedModel(knows)
    async with Session(native, seed=4):
        patches = await bug_repair.bug_repair(PROJECT)
    result = await bug_repair.arun(bug_repair.bug_repair, PROJECT, model=searched, seed=4, supervisor=Once())
    assert patches == result.value
    assert sorted(patches) == sorted([EVEN, FIRST])
    assert [call._replace(session="") for call in native.calls] == [
        call._replace(session="") for call in searched.calls
    ]
    assert {call.agent for call in native.calls} == {"bug_repair", "context_gather"}


@pytest.mark.parametrize("algorithm", bug_repair.Algorithm)
def test_the_search_finds_patches_that_a_single_run_does_not(algorithm: bug_repair.Algorithm) -> None:
    once = run(bug_repair.bug_repair, PROJECT, model=ScriptedModel(knows_one_in_three), supervisor=Once())
    assert once.best is None
    supervisor = bug_repair.supervisor_of(algorithm, branching=3, breadth=2)
    result = run(
        bug_repair.bug_repair, PROJECT, model=ScriptedModel(knows_one_in_three), supervisor=supervisor, seed=1
    )
    assert result.value is not None
    files = PROJECT
    for patch in result.value:
        files = patched(files, patch)
    assert verify(files).is_clean
    assert result.best is not None
    assert result.best.score == len(CHECKS)


def test_each_branch_has_a_helper_of_its_own() -> None:
    model = ScriptedModel(knows_one_in_three)
    supervisor = bug_repair.supervisor_of(bug_repair.Algorithm.TOT, branching=3, breadth=3)
    result = run(bug_repair.bug_repair, PROJECT, model=model, supervisor=supervisor, seed=1)
    nodes = {node.id: node for node in result.tree.nodes}
    asked = [
        (node, prompt)
        for node in nodes.values()
        if node.name == "patch" and node.agent == "bug_repair"
        for prompt in node.prompts
    ]
    written = [
        [
            reply
            for above in result.tree.path_to(node.id)
            for reply in above.replies
            if above.agent == "bug_repair" and ":" in reply
        ]
        for node, _ in asked
    ]
    assert len({tuple(patches) for patches in written if len(patches) == 1}) == 3
    for (_, prompt), patches in zip(asked, written, strict=True):
        # What the helper shows has every patch of this branch (the last on a line), and none of another one.
        code = prompt.partition("\n\nTests say:")[0]
        files = PROJECT
        for patch in patches:
            files = patched(files, patch)
        for line in filter(None, code.splitlines()):
            file, number, text = line.split(":", 2)
            assert text[1:] == files[file].splitlines()[int(number) - 1]


def test_the_helper_ends_when_there_is_nothing_left_to_look_at() -> None:
    result = run(
        bug_repair.bug_repair,
        PROJECT,
        model=ScriptedModel(lambda request: request.sampling.choices[0]),
        supervisor=Once(),
    )
    assert result.best is None
    (dead,) = [node for node in result.tree.nodes if node.status == "dead"]
    assert (dead.failure or "").startswith("no more code to look at")
    assert context_gather.program.is_generator


def test_a_server_without_grammars_makes_branches_fail_not_the_run() -> None:
    script = {"look_up": lambda request: request.sampling.choices[0], "patch": "I am sorry."}
    model = ScriptedModel(script, grammars=False)
    result = run(bug_repair.bug_repair, PROJECT, model=model)
    assert result.best is None
    assert any("grammars" in (node.failure or "") for node in result.tree.nodes)


def test_the_command_with_random_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bug_repair, "TEST_S", 0.5)
    app = Typer()
    app.command()(bug_repair.main)
    done = CliRunner().invoke(app, ["--random", "--branching", "2", "--breadth", "1", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "context_gather:" in done.output
    assert "<svg" in (tmp_path / "tree.html").read_text()
    for wrong in ([], ["--random", "--url", "http://localhost:1"], ["--url", "localhost"]):
        assert CliRunner().invoke(app, wrong).exit_code == 2


@pytest.mark.server
@pytest.mark.parametrize("algorithm", bug_repair.Algorithm)
def test_on_the_real_server(algorithm: bug_repair.Algorithm, server: ServerProcess) -> None:
    supervisor = bug_repair.supervisor_of(algorithm, branching=3, breadth=2)
    result: RunResult[list[str]] = run(
        bug_repair.bug_repair, PROJECT, model=server.url, supervisor=supervisor, seed=3
    )
    assert isinstance(supervisor, MCTS) == (algorithm is bug_repair.Algorithm.MCTS)
    agents = result.totals.agents
    assert set(agents) == {"bug_repair", "context_gather"}
    assert agents["bug_repair"].requests >= 3
    patches = [
        reply for node in result.tree.nodes if node.agent == "bug_repair" for reply in node.replies if reply
    ]
    assert patches
    # The grammar holds: every patch is one, and applies.
    assert not any("grammars" in (node.failure or "") for node in result.tree.nodes)
    assert all(patched(PROJECT, patch) for patch in patches)
    print(json.dumps({"repair": result.value, **result.totals.model_dump()}))
