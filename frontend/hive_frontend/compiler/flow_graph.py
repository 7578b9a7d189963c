"""The flow graph of an agent: its states, and which state can follow which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hive_frontend.errors import HiveError

NodeKind = Literal[
    "start",
    "gen",
    "prefill",
    "decode",
    "delete",
    "gather",
    "tool",
    "choose",
    "next",
    "resume",
    "call",
    "yield",
    "return",
]

START, RETURN = "start", "return"
"""Names of the two nodes that every flow graph has."""
YIELD = "yield"
"""Name of the states in which spawned agents yield."""
FAIL = "fail"
"""Name of the states in which branches died."""

_NO_STATES = frozenset({START, RETURN, "call"})
"""Kinds of nodes at which no state waits: what is called goes on at once."""


@dataclass(frozen=True, slots=True)
class FlowNode:
    """The start of an agent, one of its awaits, or its return."""

    id: str
    """`"start"`, `"return"`, or the number of the await; in a helper with the helper's name before it."""
    name: str
    """Name of the states here: the one given by `name=`, or one made of the line number."""
    kind: NodeKind
    line: int
    source: str
    """The source line, stripped."""
    agent: str
    """The agent that the call is attributed to."""


@dataclass(frozen=True, slots=True)
class FlowEdge:
    """A transition: code that runs from one node to another without a model call between."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class FlowGraph:
    """What an agent can do, drawn before it does anything."""

    agent: str
    nodes: tuple[FlowNode, ...]
    edges: tuple[FlowEdge, ...]
    open: bool = False
    """Whether there are calls of which it is known only at run time where they lead."""

    @property
    def state_names(self) -> tuple[str, ...]:
        """The names that a supervisor can refer to, in the order of the source."""
        return tuple(dict.fromkeys(node.name for node in self.nodes if node.kind not in _NO_STATES))

    def node(self, id: str) -> FlowNode:
        """The node with this id; `KeyError` if there is none."""
        for node in self.nodes:
            if node.id == id:
                return node
        raise KeyError(id)

    def to_dot(self) -> str:
        """The graph in the language of Graphviz."""
        lines = [
            f"digraph {_dot(self.agent)} {{",
            "  rankdir=TB;",
            '  node [fontname="sans-serif", fontsize=12];',
            '  edge [color="#667085", arrowsize=0.7];',
        ]
        for node in self.nodes:
            label, tooltip = _dot("\n".join(self._label(node))), _dot(node.source)
            lines.append(f"  {_dot(node.id)} [{_DOT_SHAPES[node.kind]}, label={label}, tooltip={tooltip}];")
        lines += [f"  {_dot(edge.source)} -> {_dot(edge.target)};" for edge in self.edges]
        return "\n".join([*lines, "}", ""])

    def to_mermaid(self) -> str:
        """The graph in the language of Mermaid, which many Markdown viewers draw."""
        lines = ["flowchart TD"]
        for node in self.nodes:
            left, right = _MERMAID_SHAPES[node.kind]
            label = "<br/>".join(map(_mermaid, self._label(node)))
            # A prefix, because a bare `end` or number is no safe id there.
            lines.append(f'  n_{node.id}{left}"{label}"{right}')
        lines += [f"  n_{edge.source} --> n_{edge.target}" for edge in self.edges]
        return "\n".join([*lines, ""])

    def svg(self) -> str:
        """The graph as a picture: an SVG document that needs nothing from outside.

        Graphviz draws it; `HiveError` where its program `dot` is not installed.
        """
        # Only drawing needs the package.
        import graphviz  # type: ignore[import-untyped]

        try:
            drawn: str = graphviz.Source(self.to_dot()).pipe(format="svg", encoding="utf-8", quiet=True)
        except graphviz.ExecutableNotFound:
            raise HiveError(
                "drawing a flow graph needs the program dot of Graphviz: apt-get install graphviz (or take "
                "to_mermaid(), which needs nothing)"
            ) from None
        # What comes before names a document type by its address; browsers and HTML pages need neither.
        return drawn[drawn.index("<svg") :]

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """What a notebook shows: the picture or, without Graphviz, Mermaid's text for it."""
        mermaid = self.to_mermaid()
        bundle = {"text/plain": mermaid}
        try:
            bundle["image/svg+xml"] = self.svg()
        except HiveError:
            bundle["text/markdown"] = f"```mermaid\n{mermaid}```"
        return bundle

    def _repr_svg_(self) -> str | None:
        """The picture, for notebooks that ask for nothing else; None without Graphviz."""
        try:
            return self.svg()
        except HiveError:
            return None

    def _label(self, node: FlowNode) -> list[str]:
        """The lines of text in a node."""
        if node.kind in (START, RETURN):
            return [node.name]
        kind = [] if node.kind in ("gen", "gather", node.name) else [node.kind]
        agent = [] if node.agent == self.agent else [f"agent {node.agent}"]
        # States without a name are called after their line.
        line = [] if node.name.startswith(f"L{node.line}") else [f"line {node.line}"]
        return [node.name, *agent, *([", ".join([*kind, *line])] if kind or line else [])]


_DOT_SHAPES: dict[NodeKind, str] = {
    "start": "shape=oval",
    "gen": "shape=box, style=rounded",
    "prefill": "shape=note",
    "decode": "shape=box, style=rounded",
    "delete": "shape=plain",
    "gather": "shape=box, style=rounded, peripheries=2",
    "tool": "shape=component",
    "choose": "shape=diamond",
    "next": "shape=trapezium",
    "resume": "shape=invtrapezium",
    "call": 'shape=box, style="rounded,dashed"',
    "yield": "shape=parallelogram",
    "return": "shape=oval",
}
"""How Graphviz draws each kind of node."""

_MERMAID_SHAPES: dict[NodeKind, tuple[str, str]] = {
    "start": ("([", "])"),
    "gen": ("[", "]"),
    "prefill": (">", "]"),
    "decode": ("[", "]"),
    "delete": (">", "]"),
    "gather": ("[[", "]]"),
    "tool": ("{{", "}}"),
    "choose": ("{", "}"),
    "next": ("[/", "\\]"),
    "resume": ("[\\", "/]"),
    "call": ("(", ")"),
    "yield": ("[/", "/]"),
    "return": ("([", "])"),
}
"""What encloses the label of each kind of node in Mermaid."""

_MERMAID_ESCAPES = str.maketrans({char: f"#{ord(char)};" for char in '#&"<>`\\'})


def _dot(text: str) -> str:
    """A quoted string of Graphviz's, which it shows as it is, line by line."""
    # It reads HTML entities, too.
    escaped = _shown(text).replace("&", "&amp;").replace("\\", "\\\\").replace('"', '\\"')
    return '"' + escaped.replace("\n", "\\n") + '"'


def _mermaid(text: str) -> str:
    """A line, or several, of a label of Mermaid's."""
    return _shown(text).translate(_MERMAID_ESCAPES).replace("\n", "<br/>")


def _shown(text: str) -> str:
    """The text with lines that end in a line feed, and without what no document may hold."""
    lines = text.splitlines() or [""]
    return "\n".join("".join(char if char.isprintable() else " " for char in line) for line in lines)
