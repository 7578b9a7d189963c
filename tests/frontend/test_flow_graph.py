"""Flow graphs as pictures and as text for other programs."""

from __future__ import annotations

import itertools
import re
import shutil
import xml.etree.ElementTree as ElementTree

import pytest
from hive_frontend.compiler.flow_graph import FlowEdge, FlowGraph, FlowNode, NodeKind
from hive_frontend.errors import HiveError

needs_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="needs Graphviz: apt-get install graphviz")

EVIL = 'evil "name" & <b>#1; \\N `x`\nsecond\x1b line\u2028third'
KINDS: tuple[NodeKind, ...] = (
    "start",
    "gen",
    "gather",
    "tool",
    "choose",
    "next",
    "resume",
    "call",
    "yield",
    "prefill",
    "decode",
    "delete",
    "return",
)


def graph() -> FlowGraph:
    """A chain with a node of every kind, and one with a name that tries to get out of its quotes."""
    nodes = [
        FlowNode(
            kind if kind in ("start", "return") else str(number), kind, kind, 10 + number, f"x = {kind}", "a"
        )
        for number, kind in enumerate(KINDS)
    ]
    nodes.insert(2, FlowNode("evil", EVIL, "gen", 7, EVIL, "critic"))
    nodes.insert(3, FlowNode("unnamed", "L30.2", "tool", 30, "", "a"))
    edges = [FlowEdge(one.id, other.id) for one, other in itertools.pairwise(nodes)]
    return FlowGraph("a", tuple(nodes), tuple(edges))


def test_dot_shows_what_kind_a_node_is_and_whose() -> None:
    dot = graph().to_dot()
    assert '"3" [shape=component, label="tool\\nline 13", tooltip="x = tool"];' in dot
    assert '"unnamed" [shape=component, label="L30.2\\ntool"' in dot
    escaped = 'evil \\"name\\" &amp; <b>#1; \\\\N `x`\\nsecond  line\\nthird'
    assert f'"evil" [shape=box, style=rounded, label="{escaped}\\nagent critic\\nline 7"' in dot
    shapes = {kind: re.search(rf'label="{kind}[\\"]', dot) for kind in KINDS}
    assert all(shapes.values())


def test_mermaid_shows_the_same() -> None:
    mermaid = graph().to_mermaid()
    assert '  n_3{{"tool<br/>line 13"}}' in mermaid
    assert "evil #34;name#34; #38; #60;b#62;#35;1; #92;N #96;x#96;<br/>second  line<br/>third" in mermaid
    nodes = [line for line in mermaid.splitlines()[1:] if "-->" not in line]
    assert len(nodes) == len(graph().nodes)
    for line in nodes:
        assert line.count('"') == 2
    assert "  n_start --> n_1" in mermaid


@needs_dot
def test_the_picture_is_whole_and_stands_alone() -> None:
    drawn = graph().svg()
    root = ElementTree.fromstring(drawn)
    svg = "{http://www.w3.org/2000/svg}"
    assert root.tag == f"{svg}svg"
    groups = [group.get("class") for group in root.iter(f"{svg}g")]
    assert groups.count("node") == len(graph().nodes)
    assert groups.count("edge") == len(graph().edges)
    texts = [(text.text or "").replace("\xa0", " ") for text in root.iter(f"{svg}text")]
    for line in ('evil "name" & <b>#1; \\N `x`', "second  line", "third", "agent critic", "line 13"):
        assert line in texts
    assert not re.search(r"(href|src)=", drawn)
    assert "<!DOCTYPE" not in drawn


@needs_dot
def test_a_notebook_gets_the_picture() -> None:
    bundle = graph()._repr_mimebundle_()
    assert bundle["image/svg+xml"] == graph()._repr_svg_() == graph().svg()
    assert bundle["text/plain"] == graph().to_mermaid()
    assert "text/markdown" not in bundle


def test_without_graphviz(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(HiveError, match="apt-get install graphviz"):
        graph().svg()
    assert graph()._repr_svg_() is None
    bundle = graph()._repr_mimebundle_()
    assert bundle["text/markdown"] == f"```mermaid\n{graph().to_mermaid()}```"
    assert "image/svg+xml" not in bundle
