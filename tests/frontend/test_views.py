"""The live view and the page of the search tree."""

from __future__ import annotations

import io
import re
from html.parser import HTMLParser

from hive_frontend import (
    LiveView,
    RunResult,
    SearchTree,
    TreeOfThoughts,
    agent,
    fail,
    gather,
    gen,
    render_tree,
    run,
    score,
)
from hive_frontend.testing import ScriptedModel
from rich.console import Console

EVIL = "<script>alert('x')</script> & \"quotes\" \x1b[31m"


@agent(supervisor=TreeOfThoughts(branch_at="propose", branching=3, breadth=1, limit=None))
async def program() -> list[str]:
    steps: list[str] = []
    for _ in range(2):
        step = await gen(f"next? {EVIL}", name="propose")
        if step == "bad":
            fail(f"rejected {EVIL}")
        steps.append(step)
        votes = await gather(gen("rate", name="value"), gen("rate", name="value"))
        score(len(votes[0]))
    return steps


def search(view: LiveView | None = None) -> RunResult[list[str]]:
    script = {
        "propose": lambda request: ["bad", EVIL, "good " * 200][request.sample],
        "value": lambda request: "v" * (1 + request.seed % 5),
    }
    return run(program, model=ScriptedModel(script), seed=2, on_event=view.on_event if view else None)


class Outline(HTMLParser):
    """Checks that tags nest, and counts them."""

    VOID = frozenset({"meta", "path"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.counts: dict[str, int] = {}
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_shows_every_state_and_escapes_everything() -> None:
    tree = search().tree
    page = render_tree(tree, title="A & B")
    outline = Outline()
    outline.feed(page)
    assert outline.open == []
    assert outline.counts["li"] == outline.counts["circle"] == len(tree.nodes)
    assert outline.counts["path"] == len(tree.nodes) - 1
    assert len(set(outline.ids)) == len(tree.nodes)
    assert "script" not in outline.counts
    assert "&lt;script&gt;alert(&#x27;x&#x27;)" in page
    assert "<title>A &amp; B</title>" in page
    assert not re.search(r"(src|href)=\"(?!#)", page), "the page refers to nothing outside itself"
    assert page.count("best result") == 1
    for status in ("dead", "pruned", "result", "expanded"):
        assert f'<li class="{status}' in page


def test_the_tree_survives_json() -> None:
    tree = search().tree
    again = SearchTree.model_validate_json(tree.model_dump_json())
    assert again == tree
    assert render_tree(again) == render_tree(tree)
    path = again.path_to(again.best or "")
    assert path[0].parent is None
    assert [node.name for node in path] == ["propose", "value", "propose", "value", "return"]


def test_a_tree_of_one_node_and_a_very_deep_one() -> None:
    @agent
    async def chain(n: int) -> int:
        for i in range(n):
            await gen(f"{i}")
        return n

    for depth in (0, 1200):
        page = render_tree(run(chain, depth, model=ScriptedModel({"*": "x"})).tree)
        assert page.count("<li ") == depth + 1


def test_the_live_view_on_a_terminal() -> None:
    out = io.StringIO()
    with LiveView("puzzle 1", console=Console(file=out, force_terminal=True, width=120)) as view:
        search(view)
    shown = out.getvalue()
    assert "puzzle 1" in shown
    assert "best score" in shown
    assert "alert('x')" in shown
    assert "\x1b[31m\x1b" not in shown.replace("\x1b[31m ", "")
    assert f"{EVIL[-5:]}" not in shown.split("alert('x')")[-1][:60], (
        "escape codes of models do not get through"
    )


def test_the_live_view_without_a_terminal() -> None:
    out = io.StringIO()
    with LiveView("puzzle 1", console=Console(file=out), every_s=1000) as view:
        result = search(view)
    (line,) = out.getvalue().splitlines()
    assert line.startswith(f"puzzle 1: fired {result.states_fired}  alive 0  dead 2  results 2  best score ")
    assert f"generated {result.totals.tokens_generated}  replayed 0 (0%)" in line
    out.truncate(0)
    with LiveView(console=Console(file=out), every_s=0) as view:
        search(view)
    assert len(out.getvalue().splitlines()) > 5
