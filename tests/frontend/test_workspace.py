"""Workspaces: directories that fork with the branch that edits them."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from hive_frontend import TreeOfThoughts, Workspace, agent, gen, run, tool
from hive_frontend.operations import fork
from hive_frontend.testing import ScriptedModel


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "rtl").mkdir()
    (tmp_path / "rtl" / "fifo.v").write_text("module fifo;")
    (tmp_path / "notes").write_text("n")
    (tmp_path / "link").symlink_to("notes")
    return tmp_path


@pytest.mark.parametrize("hard_links", [False, True])
def test_forks_change_without_each_other(source: Path, hard_links: bool) -> None:
    first = Workspace(source, hard_links=hard_links)
    second = fork.copy([first], {})[0]
    second.write("rtl/fifo.v", "changed")
    second.write("new/file", "x")
    assert first.read("rtl/fifo.v") == "module fifo;"
    assert not (first.path / "new").exists()
    assert second.read("link") == "n"
    assert (second.path / "link").is_symlink()
    assert (source / "rtl" / "fifo.v").read_text() == "module fifo;"


def test_hard_links_cost_nothing(source: Path) -> None:
    first = Workspace(source, hard_links=True)
    second = fork.copy(first, {})
    assert (first.path / "notes").stat().st_ino == (second.path / "notes").stat().st_ino
    assert (first.path / "notes").stat().st_ino != (source / "notes").stat().st_ino


def test_files_keep_their_permissions(source: Path) -> None:
    workspace = Workspace(source)
    (workspace.path / "notes").chmod(0o755)
    workspace.write("notes", "again")
    assert (workspace.path / "notes").stat().st_mode & 0o777 == 0o755


def test_names_stay_inside(source: Path) -> None:
    workspace = Workspace(source)
    with pytest.raises(ValueError, match="outside the workspace"):
        workspace.write("../escape", "x")
    with pytest.raises(NotADirectoryError, match="is not"):
        Workspace(source / "notes")


def test_directories_go_with_their_last_reference(source: Path, tmp_path: Path) -> None:
    workspace = Workspace(source)
    path = workspace.path
    saved = workspace.save(tmp_path / "saved")
    del workspace
    gc.collect()
    assert not path.exists()
    assert (saved / "rtl" / "fifo.v").exists()


def test_tools_work_in_the_branch_that_calls_them() -> None:
    def append(workspace: Workspace, text: str) -> str:
        old = workspace.read("log") if (workspace.path / "log").exists() else ""
        workspace.write("log", old + text)
        return workspace.read("log")

    @agent(supervisor=TreeOfThoughts(branch_at="ask", branching=3, breadth=9, limit=None))
    async def program() -> str:
        workspace = Workspace()
        text = ""
        for _ in range(2):
            answer = await gen("q", name="ask")
            text = await tool(append, workspace, answer)
        return text

    result = run(program, model=ScriptedModel(lambda request: str(request.sample)))
    assert sorted(found.value for found in result.results) == [f"{a}{b}" for a in range(3) for b in range(3)]
