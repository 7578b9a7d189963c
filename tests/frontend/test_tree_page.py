"""The page of the search tree, as a browser shows it."""

from __future__ import annotations

import html
import itertools
import json
import re
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hive_frontend import (
    Completion,
    Dialogue,
    SearchTree,
    TreeOfThoughts,
    agent,
    fail,
    gather,
    gen,
    render_tree,
    run,
    score,
    spawn,
    write_tree,
)
from hive_frontend.client.contract import Request
from hive_frontend.testing import ScriptedModel

from tests.browser import CHROMIUM, needs_chromium

pytestmark = needs_chromium

EVIL = "<script>document.title = 'owned'</script><img src=x onerror=alert(1)>"


@agent(supervisor=TreeOfThoughts(branch_at="locate", branching=2, breadth=1))
async def finder(bug: str):  # type: ignore[no-untyped-def]
    talk = Dialogue(system="You find code.")
    talk.user(f"Where is {bug}?")
    place = await gen(talk, name="locate")
    score(len(place))
    yield place


@agent
async def critic(candidates: list[str]) -> str:
    return await gen(f"Which is best?\n{candidates}", name="vote")


@agent(supervisor=TreeOfThoughts(branch_at="patch", branching=3, breadth=1, limit=None))
async def solve(bug: str) -> str:
    place = await spawn(finder, bug).next()
    steps: list[str] = []
    for _ in range(2):
        patch = await gen(f"Mend {place}. {EVIL}\nSo far: {len(steps)} steps.", name="patch")
        if patch == "bad hunk":
            fail("the patch does not apply")
        steps.append(patch)
        votes = await gather(*(gen(f"Rate '{patch}'", name="rate") for _ in range(3)))
        score(votes.count("good"))
        await critic(steps)
    return f"mended in {len(steps)} steps"


def answer(request: Request) -> Completion:
    sample = request.sample
    text = {
        "locate": f"file_{sample}.py",
        "patch": "bad hunk" if sample == 2 else f"--- a{EVIL}\n+++ " + "b" * 200 + f" try {sample}",
        "rate": "good" if request.seed % 2 else "poor",
        "vote": "the first",
    }[request.name or ""]
    return Completion(text, 7, 4 if request.name == "patch" and sample == 1 else 0, "stop")


@dataclass
class Browser:
    """Chromium, which complains in its log when a page wants anything from outside."""

    folder: Path

    def open(self, text: str, *flags: str) -> subprocess.CompletedProcess[str]:
        assert CHROMIUM is not None
        page = self.folder / "page.html"
        page.write_text(text.replace("<head>", f"<head>{POLICY}"))
        return subprocess.run(
            [
                CHROMIUM,
                *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
                *("--disable-background-networking", "--enable-logging=stderr", "--window-size=1300,1400"),
                *(f"--user-data-dir={self.folder / 'profile'}", *flags, page.as_uri()),
            ],
            check=True,
            capture_output=True,
            text=True,
            timeout=120,
        )


POLICY = (
    '<meta http-equiv="Content-Security-Policy" '
    "content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\">"
)


@pytest.fixture
def browser(tmp_path: Path) -> Browser:
    return Browser(tmp_path)


@pytest.fixture(scope="module")
def tree() -> SearchTree:
    result = run(solve, "issue 12", model=ScriptedModel(answer), seed=3)
    assert result.value == "mended in 2 steps"
    return result.tree


LOOK = """
<script>
const box = e => { const r = e.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; };
const look = () => [...document.querySelectorAll('.row')].map(row => ({
  box: box(row), text: row.innerText, parts: [...row.children].map(box), classes: row.closest('li').className,
  color: getComputedStyle(row).borderLeftColor }));
const seen = { folded: look(), title: document.title, wide: document.documentElement.scrollWidth,
  view: innerWidth, dots: [...document.querySelectorAll('circle')].map(box),
  overview: box(document.querySelector('svg')) };
document.querySelectorAll('details').forEach(d => d.open = true);
seen.open = look();
const out = document.createElement('pre'); out.id = 'seen'; out.textContent = JSON.stringify(seen);
document.body.append(out);
</script>
"""
"""Says what is to be seen: appended to a copy of the page, which has no script itself."""


def looked_at(browser: Browser, tree: SearchTree) -> dict[str, Any]:
    dom = browser.open(render_tree(tree).replace("</body>", f"{LOOK}</body>"), "--dump-dom").stdout
    found = re.search(r'<pre id="seen">(.*?)</pre>', dom, re.DOTALL)
    assert found
    seen: dict[str, Any] = json.loads(html.unescape(found[1]))
    return seen


def apart(one: list[float], other: list[float]) -> bool:
    return (
        one[2] <= other[0] + 1 or other[2] <= one[0] + 1 or one[3] <= other[1] + 1 or other[3] <= one[1] + 1
    )


def test_what_a_reader_sees(browser: Browser, tree: SearchTree) -> None:
    seen = looked_at(browser, tree)
    texts = [row["text"] for row in seen["folded"]]
    assert len(texts) == len(seen["dots"]) == len(tree.nodes)
    for node in tree.nodes:
        (text,) = [text for text in texts if node.id in text.split("\n")]
        if node.score is not None:
            assert f"score {node.score:g}" in text
        if node.tokens_replayed:
            assert "4 replayed" in text
        if node.tokens_generated:
            assert f"{node.tokens_generated} generated" in text
        if node.failure:
            assert "the patch does not apply" in text
        if node.agent != "solve":
            assert node.agent in text.split("\n")
        for reply in node.replies:
            assert reply in text.replace("\n\n", "\n") or node.value == repr(reply)
        if node.value:
            assert node.value in text
    whole = "\n".join(texts)
    for word in ("best result", "kept", "pruned", "dead", "returned", "yielded", "critic", "finder"):
        assert word in whole
    assert "You find code." not in whole, "prompts are folded at first"
    unfolded = "\n".join(row["text"] for row in seen["open"])
    assert "You find code.\n\nWhere is issue 12?" in unfolded
    assert unfolded.count("So far: 1 steps.") > whole.count("So far: 1 steps.") > 0
    assert EVIL in unfolded
    assert seen["title"] == "Search tree of solve"


def test_nothing_is_empty_or_overlaps(browser: Browser, tree: SearchTree) -> None:
    seen = looked_at(browser, tree)
    assert seen["wide"] <= seen["view"], "nobody has to scroll sideways"
    for rows in (seen["folded"], seen["open"]):
        for row in rows:
            left, top, right, bottom = row["box"]
            assert right - left > 300
            assert bottom - top > 15
            name, texts, chips = row["parts"]
            assert apart(name, texts)
            assert apart(texts, chips)
            assert apart(name, chips)
            assert all(left <= part[0] and part[2] <= right + 1 for part in row["parts"])
        boxes = [row["box"] for row in rows]
        assert all(one[3] <= other[1] + 1 for one, other in itertools.pairwise(boxes))
    left, top, right, bottom = seen["overview"]
    for place, dot in enumerate(seen["dots"]):
        assert left <= dot[0] <= dot[2] <= right
        assert top <= dot[1] <= dot[3] <= bottom
        assert all(apart(dot, other) for other in seen["dots"][:place])


def test_inner_agents_look_different(browser: Browser, tree: SearchTree) -> None:
    rows = looked_at(browser, tree)["folded"]
    inner = {row["color"] for row in rows if "inner" in row["classes"].split()}
    outer = {row["color"] for row in rows if "inner" not in row["classes"].split()}
    assert len(inner) == 1
    assert not inner & outer


def test_the_page_asks_for_nothing_and_says_nothing_is_wrong(browser: Browser, tree: SearchTree) -> None:
    page = write_tree(tree, browser.folder / "tree.html").read_text()
    picture = browser.folder / "tree.png"
    done = browser.open(page, f"--screenshot={picture}")
    assert "CONSOLE" not in done.stderr
    assert "<script" not in page
    data = picture.read_bytes()
    assert struct.unpack(">II", data[16:24]) == (1300, 1400)
    image = pytest.importorskip("PIL.Image", reason="needs Pillow: pip install pillow")
    with image.open(picture) as shown:
        colors = shown.convert("RGB").getcolors(maxcolors=1 << 24)
    assert len(colors) > 100
    counts = sorted((count for count, _ in colors), reverse=True)
    assert counts[0] < 0.9 * 1300 * 1400, "the page is not blank"
    # Orange is the way to the best result, purple are the inner agents, both in the light and the dark dress.
    by_color = {color: count for count, color in colors}
    assert max(by_color.get((0xD9, 0x8E, 0x04), 0), by_color.get((0xF0, 0xB1, 0x3C), 0)) > 500
    assert max(by_color.get((0x7A, 0x5C, 0xC9), 0), by_color.get((0xA7, 0x8B, 0xFA), 0)) > 100


@pytest.mark.parametrize("fault", ["<script>nonsense()</script>", '<img src="http://example.invalid/x.png">'])
def test_what_is_wrong_with_a_page_would_be_noticed(browser: Browser, fault: str) -> None:
    assert "CONSOLE" in browser.open(f"<html><head></head><body>{fault}</body></html>", "--dump-dom").stderr


def test_a_notebook_shows_the_page_in_a_frame(browser: Browser, tree: SearchTree) -> None:
    frame = tree._repr_html_()
    # The notebook's frame runs no scripts, so that a copy has to tell what a click does.
    told = frame.replace("iframe sandbox", 'iframe id="frame" sandbox="allow-same-origin"')
    script = """
<script>
const frame = document.getElementById("frame");
onload = () => {
  frame.contentDocument.querySelectorAll("svg a")[3].dispatchEvent(new MouseEvent("click", {bubbles: true}));
  setTimeout(() => {
    const inside = frame.contentWindow;
    const rows = inside.document.querySelectorAll(".row").length;
    const out = document.createElement("pre"); out.id = "seen";
    out.textContent = JSON.stringify({url: inside.location.href, rows, scrolled: inside.scrollY});
    document.body.append(out);
  }, 300);
};
</script>"""
    page = f"<!doctype html><html><head></head><body>{told}{script}</body></html>"
    done = browser.open(page, "--dump-dom", "--virtual-time-budget=5000")
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found
    seen = json.loads(html.unescape(found[1]))
    assert seen["url"] == "about:srcdoc#n3"
    assert seen["rows"] == len(tree.nodes)
    assert seen["scrolled"] > 0
