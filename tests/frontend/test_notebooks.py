"""What notebooks show: results, trees, flow graphs and evaluations."""

from __future__ import annotations

import html
import re
import sys
from pathlib import Path

import pytest
from hive_frontend import Budget, SearchTree, TreeOfThoughts, agent, evaluate, fail, gen, run, score, tree
from hive_frontend.testing import ScriptedModel

EVIL = "</iframe><script>alert(1)</script>\"'&"


@agent(supervisor=TreeOfThoughts(branch_at="word", branching=2, breadth=2))
async def words(count: int) -> str:
    text = ""
    for _ in range(count):
        word = await gen(f"Next? {EVIL}", name="word")
        if word == "dead":
            fail(EVIL)
        text += word
        score(len(text))
    return text


def page_in(shown: str) -> str:
    """The page in a frame, which must be one element that runs no scripts."""
    found = re.fullmatch(
        r'.*<iframe sandbox srcdoc="([^"]*)" title="[^"]*" style="[^"]*"></iframe>', shown, re.DOTALL
    )
    assert found
    return html.unescape(found[1])


def test_a_result_shows_its_value_and_its_tree() -> None:
    result = run(words, 2, model=ScriptedModel({"*": EVIL}), seed=1)
    shown = result._repr_html_()
    assert "<script" not in shown
    assert html.escape(repr(result.best)) in shown
    assert (
        f"{len(result.results)} results, {result.states_fired} states fired, {result.totals.requests} requests"
        in shown
    )
    page = page_in(shown)
    assert page.startswith("<!doctype html>")
    assert '<base href="about:srcdoc">' in page
    assert "<script" not in page
    assert page_in(result.tree._repr_html_()) == page
    loaded = SearchTree.model_validate_json(result.tree.model_dump_json())
    assert loaded._repr_html_() == result.tree._repr_html_()


def test_a_run_without_a_result_says_so() -> None:
    dead = run(words, 2, model=ScriptedModel({"*": "dead"}), seed=1)
    assert "no result: every branch failed" in dead._repr_html_()
    spent = run(words, 9, model=ScriptedModel({"*": "a"}), seed=1, budget=Budget(calls=3))
    assert "Result(value=None, score=" in spent._repr_html_()


def test_a_tree_that_is_too_large_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(words, 2, model=ScriptedModel({"*": "a"}), seed=1)
    monkeypatch.setattr(tree, "_LARGEST_FRAME", 1000)
    shown = result.tree._repr_html_()
    assert f"This tree of {len(result.tree.nodes)} states is too large for a notebook." in shown
    assert "iframe" not in shown


def test_an_evaluation_shows_its_table() -> None:
    report = evaluate(
        words, [1, 2], lambda item, result: {f"<{EVIL}>": True}, model=ScriptedModel({"*": ["a", "b"]})
    )
    shown = report._repr_html_()
    assert "<script" not in shown
    assert shown.count("<tr>") == 2
    assert "ScriptExhausted" in shown


NOTEBOOK = [
    """
from hive import BestOfN, agent, compare, evaluate, gen, run
from hive.testing import FunctionModel

@agent(supervisor=BestOfN(2))
async def shout(text: str) -> str:
    return await gen(text, name="loud")

model = FunctionModel(lambda request: request.text.upper())
result = run(shout, "hello", model=model, seed=1)
result
""",
    "result.tree",
    "shout.graph()",
    "evaluate(shout, ['a', 'b'], lambda item, result: result.value == item.upper(), model=model)",
    "compare({'one': shout, 'two': shout}, ['a', 'b'], lambda item, result: True, model=model)",
]


def test_a_notebook_runs_and_shows_all_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip(
        "nbclient", reason="needs nbclient and ipykernel: uv pip install 'hive[dev]'"
    )
    nbformat = pytest.importorskip("nbformat")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", ":".join(filter(None, sys.path)))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in NOTEBOOK])
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    result, drawn, graph, report, compared = (cell.outputs[-1]["data"] for cell in notebook.cells)
    assert "HELLO" in page_in(result["text/html"])
    assert page_in(drawn["text/html"]) == page_in(result["text/html"])
    assert graph.get("image/svg+xml", "<svg").startswith("<svg")
    assert "loud" in graph["text/plain"]
    assert "100.0%" in report["text/html"]
    assert compared["text/html"].count("<tr>") == 4
