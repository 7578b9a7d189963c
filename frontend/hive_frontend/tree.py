"""The search tree of a run: as data, to store as JSON or analyse, and as a web page.

The page is one self-contained HTML file, readable without scripts or network.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from hive_frontend.compiler.flow_graph import YIELD

_OPEN_NODES = 400
"""Trees with more nodes are folded at first, except for the branch of the best result."""
_LONG = 600
"""Characters of a text that are shown while it is folded."""
_PREVIEW = 80
"""Characters of a folded prompt that are shown, from its last line, which usually has the question."""
_SHORT = 40
"""Most characters of an answer that is shown side by side with others."""
_LARGEST_FRAME = 4_000_000
"""Most characters of a page that a notebook shows; the notebook's file contains them."""
_HIGHEST_FRAME = 640
"""Most pixels of its height."""

Status = Literal["expanded", "pruned", "dead", "result", "returned", "waiting"]


class TreeNode(BaseModel):
    """One state of a finished search."""

    id: str
    parent: str | None
    name: str
    """Name of the state, that is, of the await in the program."""
    line: int | None
    """The source line of its call; None for results and dead ends."""
    status: Status
    """`expanded`: it was fired; `pruned`: it was dropped; `dead`: it failed; `result`: the agent returned;
    `returned`: another agent that works for this one (a child, a voter) returned or yielded; `waiting`: it waits for a
    person."""
    agent: str
    """The agent that the state belongs to."""
    score: float | None
    replies: list[str]
    """The model's answers between the parent and this state."""
    prompts: list[str]
    """The prompts of its calls of models, and its calls of tools by a model; empty for results and dead ends."""
    fired: int
    """How many times it was fired."""
    tokens_generated: int
    """Tokens that the model computed between the parent and this state."""
    tokens_replayed: int
    """Tokens that the server's Logits Cache replayed instead."""
    results: list[str] = []
    """The results of tools that the model called between the parent and this state."""
    failure: str | None = None
    """Why the branch is dead."""
    value: str | None = None
    """The `repr` of the result."""


class SearchTree(BaseModel):
    """All states of a search, every parent before its children."""

    agent: str
    nodes: list[TreeNode]
    best: str | None
    """Id of the best result."""

    def path_to(self, id: str) -> list[TreeNode]:
        """Return the nodes from the root to the node `id`.

        Raises:
            KeyError: if there is no such node.
        """
        nodes = {node.id: node for node in self.nodes}
        path = [nodes[id]]
        while (parent := path[-1].parent) is not None:
            path.append(nodes[parent])
        return path[::-1]

    def _repr_html_(self) -> str:
        """Show the page in a notebook, in a frame of its own, which runs no scripts."""
        page = render_tree(self)
        if len(page) > _LARGEST_FRAME:
            return (
                f"<p>This tree of {len(self.nodes):,} states is too large for a notebook. Write its page to a file: "
                "<code>hive.write_tree(tree, &quot;tree.html&quot;)</code></p>"
            )
        # In a frame, links to a place on the page would lead to the notebook instead.
        page = page.replace("<head>", '<head><base href="about:srcdoc">', 1)
        height = min(_HIGHEST_FRAME, 260 + 40 * len(self.nodes))
        return (
            f'<iframe sandbox srcdoc="{escape(page)}" title="Search tree of {escape(self.agent)}" '
            f'style="width:100%;height:{height}px;border:1px solid #8884"></iframe>'
        )


def write_tree(tree: SearchTree, path: str | Path, *, title: str | None = None) -> Path:
    """Write the page of `tree` to `path`, and return the path."""
    target = Path(path)
    target.write_text(render_tree(tree, title=title), encoding="utf-8")
    return target


def render_tree(tree: SearchTree, *, title: str | None = None) -> str:
    """Return the page of `tree`: an overview of its shape, and an outline of its states with their texts.

    All text of programs and models is escaped.
    """
    return _Page(tree, title or f"Search tree of {tree.agent}").html()


class _Page:
    def __init__(self, tree: SearchTree, title: str) -> None:
        self._tree = tree
        self._title = title
        self._children: dict[str | None, list[TreeNode]] = {}
        for node in tree.nodes:
            self._children.setdefault(node.parent, []).append(node)
        self._best = {node.id for node in tree.path_to(tree.best)} if tree.best is not None else set()
        self._names = {node.id: node.name for node in tree.nodes}
        self._agents: dict[str | None, str] = {node.id: node.agent for node in tree.nodes}
        for id, children in self._children.items():
            # Agents that worked within a step come before the states to which the step led.
            children.sort(key=lambda child: child.agent == self._agents.get(id, tree.agent))
        self._numbers = {node.id: number for number, node in enumerate(tree.nodes)}

    def html(self) -> str:
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escape(self._title)}</title><style>{_CSS}</style></head><body>\n"
            f"<header><h1>{escape(self._title)}</h1>{self._summary()}</header>\n"
            f'<div class="overview">{self._overview()}</div>\n'
            f'<main><ul class="tree">{self._outline()}</ul></main>\n</body></html>\n'
        )

    def _summary(self) -> str:
        counts = dict.fromkeys(_WORDS, 0)
        for node in self._tree.nodes:
            counts[node.status] += 1
        generated = sum(node.tokens_generated for node in self._tree.nodes)
        replayed = sum(node.tokens_replayed for node in self._tree.nodes)
        share = f" ({replayed / (generated + replayed):.0%})" if replayed else ""
        agents = list(dict.fromkeys([self._tree.agent, *self._agents.values()]))
        facts = [
            *(
                (status, f"{count} {_WORDS[status]}{'s' if status == 'result' and count != 1 else ''}")
                for status, count in counts.items()
                if count or status not in ("returned", "waiting")
            ),
            ("plain", f"{generated:,} tokens generated"),
            ("plain", f"{replayed:,} replayed{share}"),
            *([("inner", f"inner agents: {escape(', '.join(agents[1:]))}")] if len(agents) > 1 else []),
        ]
        return "<p>" + "".join(f'<span class="fact {kind}">{text}</span>' for kind, text in facts) + "</p>"

    # The overview: a small drawing of the whole tree, whose dots link to the outline

    def _overview(self) -> str:
        places = self._places()
        across = max((x for x, _ in places.values()), default=0.0) + 1
        down = max((y for _, y in places.values()), default=0) + 1
        step_x, step_y = max(9.0, min(30.0, 1100 / across)), 46
        at = {id: ((x + 0.5) * step_x, (y + 0.5) * step_y) for id, (x, y) in places.items()}
        edges, dots = [], []
        for node in self._tree.nodes:
            x, y = at[node.id]
            kind = self._classes(node)
            if node.parent is not None:
                from_x, from_y = at[node.parent]
                middle = (from_y + y) / 2
                curve = f"M{from_x:.1f} {from_y:.1f}C{from_x:.1f} {middle:.1f} {x:.1f} {middle:.1f} {x:.1f} {y:.1f}"
                edge = f'<path class="{kind}" d="{curve}"/>'
                # Later elements are drawn on top of earlier ones.
                edges.append(edge) if node.id in self._best else edges.insert(0, edge)
            radius = 6 if node.id in self._best or node.status == "result" else 4
            hint = " | ".join([*node.replies, node.failure or node.value or ""]).strip(" |")
            dots.append(
                f'<a href="#n{self._numbers[node.id]}"><circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" '
                f'r="{radius}"><title>{escape(hint[:300])}</title></circle></a>'
            )
        width, height = across * step_x, down * step_y
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" '
            f'width="{width:.0f}" height="{height}" role="img" aria-label="The shape of the search">'
            f"{''.join(edges)}{''.join(dots)}</svg>"
        )

    def _places(self) -> dict[str, tuple[float, int]]:
        """Return column and row of each node: leaves side by side, parents centred above their children."""
        depth: dict[str, int] = {}
        for node in self._tree.nodes:
            depth[node.id] = depth[node.parent] + 1 if node.parent is not None else 0
        columns: dict[str, float] = {}
        leaves = 0
        # In this order children precede their parents, and leaves are ordered from left to right.
        for node in self._depth_first():
            below = [columns[child.id] for child in self._children.get(node.id, [])]
            columns[node.id] = (below[0] + below[-1]) / 2 if below else leaves
            leaves += not below
        return {id: (column, depth[id]) for id, column in columns.items()}

    def _depth_first(self) -> list[TreeNode]:
        """Return all nodes, children before parents. Without recursion: a tree may be thousands of levels deep."""
        order: list[TreeNode] = []
        stack = list(self._children.get(None, []))
        while stack:
            node = stack.pop()
            order.append(node)
            stack.extend(self._children.get(node.id, []))
        return order[::-1]

    # The outline: nested boxes that fold

    def _outline(self) -> str:
        parts: dict[str, str] = {}
        for node in self._depth_first():
            children = self._children.get(node.id, [])
            row = self._row(node)
            if children:
                nested = "".join(parts.pop(child.id) for child in children)
                opened = len(self._tree.nodes) <= _OPEN_NODES or node.id in self._best
                row = (
                    f"<details{' open' if opened else ''}><summary>{row}</summary><ul>{nested}</ul></details>"
                )
            parts[node.id] = f'<li class="{self._classes(node)}" id="n{self._numbers[node.id]}">{row}</li>'
        return "".join(parts[node.id] for node in self._children.get(None, []))

    def _classes(self, node: TreeNode) -> str:
        """Return the CSS classes of a node: its status, whether it leads to the best result, whether it is another
        agent's."""
        best = " best" if node.id in self._best else ""
        return node.status + best + (" inner" if node.agent != self._tree.agent else "")

    def _row(self, node: TreeNode) -> str:
        status = "best result" if node.id == self._tree.best else _WORDS[node.status]
        if node.status == "returned" and node.name == YIELD:
            status = "yielded"
        chips = [
            f'<span class="id" title="state">{escape(node.id)}</span>',
            f'<span class="chip status">{status}</span>',
        ]
        if node.agent != self._tree.agent:
            chips.insert(1, f'<span class="chip agent" title="agent">{escape(node.agent)}</span>')
        if node.score is not None:
            chips.append(f'<span class="chip score">score {node.score:g}</span>')
        if node.tokens_generated or node.tokens_replayed:
            chips.append(f'<span class="chip">{node.tokens_generated:,} generated</span>')
        if node.tokens_replayed:
            chips.append(
                f'<span class="chip replayed" title="tokens from the Logits Cache">'
                f"{node.tokens_replayed:,} replayed</span>"
            )
        # The heading of a row is the step that led to the state, because the row shows the answer of this step; for the
        # first state of another agent it is that agent.
        step = "start" if node.parent is None else self._names[node.parent]
        if node.agent != self._agents.get(node.parent, self._tree.agent):
            step = node.agent
        place = f"state {node.id} of agent {node.agent}, now at {node.name}" + (
            "" if node.line is None else f" in line {node.line}"
        )
        # A reply that is returned unchanged is shown once, as the result.
        texts = (
            [] if node.value is not None and node.value in map(repr, node.replies) else _replies(node.replies)
        )
        texts += [_text(result, "tool") for result in node.results]
        if node.failure is not None:
            texts.append(_text(node.failure, "failure"))
        if node.value is not None:
            texts.append(_text(node.value, "value"))
        texts.append(_folded(node.prompts, node.name))
        return (
            f'<span class="row"><span class="name" title="{escape(place)}">{escape(step)}</span>'
            f'<span class="texts">{"".join(texts)}</span>'
            f'<span class="chips">{"".join(chips)}</span></span>'
        )


def _replies(replies: list[str]) -> list[str]:
    """Return answers one below the other, or side by side if they are several short ones, such as votes."""
    if len(replies) > 1 and all(len(reply) <= _SHORT and "\n" not in reply.strip() for reply in replies):
        votes = "".join(f'<span class="vote">{escape(reply.strip())}</span>' for reply in replies)
        return [f'<span class="text reply">{votes}</span>']
    return [_text(reply, "reply") for reply in replies]


def _text(text: str, kind: str) -> str:
    if len(text) <= _LONG:
        return f'<span class="text {kind}">{escape(text) or "<i>(nothing)</i>"}</span>'
    return (
        f'<span class="text {kind}"><details><summary>{escape(text[:_LONG])}&#8230;</summary>'
        f"{escape(text[_LONG:])}</details></span>"
    )


def _folded(prompts: list[str], name: str) -> str:
    """Return the folded prompts of the calls that a state waits for; equal prompts once, with their count."""
    if not prompts:
        return ""
    counts = {prompt: prompts.count(prompt) for prompt in prompts}
    shown = "".join(
        f"<pre>{escape(prompt)}</pre>" + (f"<i>&#215; {count}</i>" if count > 1 else "")
        for prompt, count in counts.items()
    )
    last_line = next(iter(counts)).rstrip().rpartition("\n")[2]
    preview = last_line if len(last_line) <= _PREVIEW else f"{last_line[:_PREVIEW]}…"
    return (
        f'<details class="prompt"><summary>then <b>{escape(name)}</b> '
        f"<span>{escape(preview)}</span></summary>{shown}</details>"
    )


_WORDS = {
    "expanded": "kept",
    "pruned": "pruned",
    "dead": "dead",
    "result": "result",
    "returned": "returned",
    "waiting": "waiting for a person",
}

_CSS = """
:root { --ink:#1d2433; --soft:#667085; --line:#d5dae3; --card:#fff; --page:#f5f6f9; --kept:#3b6fd4;
  --pruned:#98a2b3; --dead:#c8453b; --result:#1f9254; --returned:#7a5cc9; --best:#d98e04; --tint:#eef2fb; }
@media (prefers-color-scheme: dark) { :root { --ink:#e4e7ee; --soft:#98a2b3; --line:#39414f; --card:#1d222c;
  --page:#14181f; --kept:#7ba4f4; --pruned:#667085; --dead:#ee7d73; --result:#57c98b; --returned:#a78bfa;
  --best:#f0b13c; --tint:#262d3b; } }
* { box-sizing:border-box; }
body { margin:0; background:var(--page); color:var(--ink); font:14px/1.45 system-ui,sans-serif; }
header, main { max-width:1240px; margin:0 auto; padding:0 20px; }
h1 { font-size:20px; margin:24px 0 6px; }
.fact { margin-right:18px; color:var(--soft); white-space:nowrap; }
.fact::before { content:""; display:inline-block; width:10px; height:10px; border-radius:50%;
  margin-right:6px; background:currentColor; }
.fact.plain::before { display:none; }
.fact.expanded::before { background:var(--kept); } .fact.pruned::before { background:var(--pruned); }
.fact.returned::before { background:var(--returned); } .fact.waiting::before { background:var(--best); }
.fact.inner::before { width:16px; height:0; border-radius:0; border-top:2px dashed var(--returned);
  background:none; vertical-align:middle; }
.fact.dead::before { background:var(--dead); } .fact.result::before { background:var(--result); }
.overview { margin:12px max(20px, calc((100% - 1200px) / 2)) 20px; padding:10px; background:var(--card); overflow:auto;
  border:1px solid var(--line); border-radius:10px; max-height:70vh; text-align:center; }
svg path { fill:none; stroke:var(--line); stroke-width:1.2; }
svg path.best { stroke:var(--best); stroke-width:2.6; }
svg circle { stroke:var(--card); stroke-width:1.5; fill:var(--kept); }
svg path.inner { stroke:var(--returned); stroke-dasharray:3 3; opacity:.6; }
svg circle.inner { fill:var(--card); stroke:var(--returned); }
svg circle.pruned { fill:var(--pruned); } svg circle.returned { fill:var(--returned); }
svg circle.dead { fill:var(--dead); } svg circle.waiting { fill:var(--best); }
svg circle.result { fill:var(--result); } svg circle.best { stroke:var(--best); stroke-width:2.5; }
ul { list-style:none; margin:0; padding:0 0 0 18px; border-left:1px solid var(--line); }
ul.tree { border:0; padding:0 0 60px; }
li { margin:5px 0; }
li > details > summary { list-style:none; cursor:pointer; }
li > details > summary::-webkit-details-marker { display:none; }
.row { display:flex; gap:10px; align-items:flex-start; background:var(--card); padding:6px 10px;
  border:1px solid var(--line); border-left:4px solid var(--kept); border-radius:7px; }
.pruned > .row, .pruned > details > summary .row { border-left-color:var(--pruned); opacity:.72; }
.inner > .row, .inner > details > summary > .row { border-style:dashed; border-left:4px dotted var(--returned); }
.dead > .row { border-left-color:var(--dead); opacity:.85; }
.result > .row { border-left-color:var(--result); background:var(--tint); }
.best > .row, .best > details > summary > .row { border-color:var(--best); }
li:target > .row, li:target > details > summary > .row { outline:3px solid var(--best); }
.name { flex:none; font-weight:600; min-width:62px; }
.texts { flex:1; min-width:0; }
.text { display:block; white-space:pre-wrap; overflow-wrap:anywhere;
  font:13px/1.45 ui-monospace,Menlo,Consolas,monospace; }
.text.value { color:var(--result); font-weight:600; } .text.failure { color:var(--dead); }
.text.tool::before { content:"\\2192 "; color:var(--soft); }
.vote { display:inline-block; margin:0 6px 2px 0; padding:0 7px; border:1px solid var(--line);
  border-radius:6px; }
.text summary { cursor:pointer; } .text i { color:var(--soft); }
.prompt { color:var(--soft); font-size:12px; }
.prompt summary { cursor:pointer; overflow:hidden; text-overflow:ellipsis; white-space:nowrap; }
.prompt span { font:12px ui-monospace,Menlo,Consolas,monospace; opacity:.8; }
.prompt pre { display:inline-block; white-space:pre-wrap; overflow-wrap:anywhere; margin:4px 8px 4px 0; }
.chips { flex:none; display:flex; gap:6px; flex-wrap:wrap; justify-content:flex-end; max-width:45%; }
.chip { font-size:12px; padding:0 7px; border-radius:9px; background:var(--tint); color:var(--soft);
  white-space:nowrap; }
.id { font:11px/18px ui-monospace,Menlo,Consolas,monospace; color:var(--soft); max-width:12em; overflow:hidden;
  text-overflow:ellipsis; white-space:nowrap; }
.chip.agent { color:var(--returned); }
.chip.score { color:var(--ink); font-weight:600; } .chip.replayed { color:var(--result); }
.result > .row .status { background:var(--result); color:var(--card); }
.dead > .row .status { color:var(--dead); } .waiting > .row .status { color:var(--best); font-weight:600; }
"""
