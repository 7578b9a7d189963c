"""The flow graph of an agent: its states, and which state can follow which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

NodeKind = Literal["start", "gen", "gather", "tool", "choose", "next", "resume", "call", "yield", "return"]

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
        lines = [f'digraph "{_dot(self.agent)}" {{', "  rankdir=TB;", '  node [fontname="sans-serif"];']
        for node in self.nodes:
            shape = "oval" if node.kind in (START, RETURN) else "box, style=rounded"
            label = _dot(node.name) + ("" if node.kind in (START, RETURN) else f"\\nline {node.line}")
            lines.append(f'  "{node.id}" [shape={shape}, label="{label}", tooltip="{_dot(node.source)}"];')
        lines += [f'  "{edge.source}" -> "{edge.target}";' for edge in self.edges]
        return "\n".join([*lines, "}", ""])

    def to_mermaid(self) -> str:
        """The graph in the language of Mermaid, which many Markdown viewers draw."""
        lines = ["flowchart TD"]
        for node in self.nodes:
            # A prefix, because a bare `end` or number is no safe id there.
            if node.kind not in (START, RETURN):
                lines.append(f'  n_{node.id}["{_mermaid(node.name)}<br/>line {node.line}"]')
            else:
                lines.append(f'  n_{node.id}(["{node.name}"])')
        lines += [f"  n_{edge.source} --> n_{edge.target}" for edge in self.edges]
        return "\n".join([*lines, ""])


def _dot(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _mermaid(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
