"""The flow graph of an agent: its states and the possible transitions between them."""

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
    "ask_human",
    "next",
    "resume",
    "call",
    "yield",
    "return",
]

START, RETURN = "start", "return"
"""Names of the two nodes that every flow graph has."""
YIELD = "yield"
"""Name of the states of spawned agents at a `yield`."""
FAIL = "fail"
"""Name of dead states."""

_NO_STATES = frozenset({START, RETURN, "call"})
"""Kinds of nodes without waiting states: a called helper runs on at once."""


@dataclass(frozen=True, slots=True)
class FlowNode:
    """The start of an agent, one of its awaits, or its return."""

    id: str
    """`"start"`, `"return"`, or the number of the await; in a helper with the helper's name before it."""
    name: str
    """Name of the states at this node: given by `name=`, or made from the line number."""
    kind: NodeKind
    line: int
    source: str
    """The source line, stripped."""
    agent: str
    """The agent that the call is attributed to."""


@dataclass(frozen=True, slots=True)
class FlowEdge:
    """A transition: code that runs from one node to another without an await in between."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class FlowGraph:
    """The states and transitions of an agent, known before any run."""

    agent: str
    nodes: tuple[FlowNode, ...]
    edges: tuple[FlowEdge, ...]
    open: bool = False
    """Whether the agent awaits functions that are known only at run time, so that states may be missing."""

    @property
    def state_names(self) -> tuple[str, ...]:
        """The state names that a supervisor can refer to, in source order."""
        return tuple(dict.fromkeys(node.name for node in self.nodes if node.kind not in _NO_STATES))

    def node(self, id: str) -> FlowNode:
        """Return the node with this id.

        Raises:
            KeyError: if there is none.
        """
        for node in self.nodes:
            if node.id == id:
                return node
        raise KeyError(id)

    def to_dot(self) -> str:
        """Return the graph in DOT, the language of Graphviz."""
        lines = [
            f"digraph {_dot(self.agent)} {{",
            "  rankdir=TB;",
            '  node [fontname="sans-serif", fontsize=12];',
            '  edge [color="#667085", arrowsize=0.7];',
        ]
        for node in self.nodes:
            label, tooltip = _dot("\n".join(self._label(node))), _dot(node.source)
            lines.append(f"  {_dot(node.id)} [{_SHAPES[node.kind][0]}, label={label}, tooltip={tooltip}];")
        lines += [f"  {_dot(edge.source)} -> {_dot(edge.target)};" for edge in self.edges]
        return "\n".join([*lines, "}", ""])

    def to_mermaid(self) -> str:
        """Return the graph in Mermaid, which many Markdown viewers render."""
        lines = ["flowchart TD"]
        for node in self.nodes:
            _, left, right = _SHAPES[node.kind]
            label = "<br/>".join(map(_mermaid, self._label(node)))
            # The prefix is needed because Mermaid does not accept ids such as `end` or a number.
            lines.append(f'  n_{node.id}{left}"{label}"{right}')
        lines += [f"  n_{edge.source} --> n_{edge.target}" for edge in self.edges]
        return "\n".join([*lines, ""])

    def svg(self) -> str:
        """Return the graph as a self-contained SVG document, rendered by Graphviz.

        Raises:
            HiveError: if Graphviz's program `dot` is not installed.
        """
        # Imported here because only rendering needs the package.
        import graphviz  # type: ignore[import-untyped]

        try:
            drawn: str = graphviz.Source(self.to_dot()).pipe(format="svg", encoding="utf-8", quiet=True)
        except graphviz.ExecutableNotFound:
            raise HiveError(
                "drawing a flow graph needs Graphviz's program dot: apt-get install graphviz (or use "
                "to_mermaid(), which does not need it)"
            ) from None
        # Cut off the XML header and document type: they refer to an external address, and HTML needs neither.
        return drawn[drawn.index("<svg") :]

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """Return what a notebook shows: the SVG image or, without Graphviz, the Mermaid text."""
        mermaid = self.to_mermaid()
        bundle = {"text/plain": mermaid}
        try:
            bundle["image/svg+xml"] = self.svg()
        except HiveError:
            bundle["text/markdown"] = f"```mermaid\n{mermaid}```"
        return bundle

    def _repr_svg_(self) -> str | None:
        """Return the SVG image for notebooks that support no other method; None without Graphviz."""
        try:
            return self.svg()
        except HiveError:
            return None

    def _label(self, node: FlowNode) -> list[str]:
        """Return the lines of text in a node."""
        if node.kind in (START, RETURN):
            return [node.name]
        kind = [] if node.kind in ("gen", "gather", node.name) else [node.kind]
        agent = [] if node.agent == self.agent else [f"agent {node.agent}"]
        # The name of an unnamed state has its line number already.
        line = [] if node.name.startswith(f"L{node.line}") else [f"line {node.line}"]
        return [node.name, *agent, *([", ".join([*kind, *line])] if kind or line else [])]


_SHAPES: dict[NodeKind, tuple[str, str, str]] = {
    "start": ("shape=oval", "([", "])"),
    "gen": ("shape=box, style=rounded", "[", "]"),
    "prefill": ("shape=note", ">", "]"),
    "decode": ("shape=box, style=rounded", "[", "]"),
    "delete": ("shape=plain", ">", "]"),
    "gather": ("shape=box, style=rounded, peripheries=2", "[[", "]]"),
    "tool": ("shape=component", "{{", "}}"),
    "choose": ("shape=diamond", "{", "}"),
    "ask_human": ("shape=octagon", "((", "))"),
    "next": ("shape=trapezium", "[/", "\\]"),
    "resume": ("shape=invtrapezium", "[\\", "/]"),
    "call": ('shape=box, style="rounded,dashed"', "(", ")"),
    "yield": ("shape=parallelogram", "[/", "/]"),
    "return": ("shape=oval", "([", "])"),
}
"""Graphviz attributes of each kind of node, and what encloses its label in Mermaid."""

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
    """Return the text with plain line feeds, and with spaces for characters that are not printable."""
    lines = text.splitlines() or [""]
    return "\n".join("".join(char if char.isprintable() else " " for char in line) for line in lines)
