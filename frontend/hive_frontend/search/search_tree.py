"""The search tree of a run, as data: to be kept as JSON, drawn, or counted over."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

Status = Literal["expanded", "pruned", "dead", "result", "returned"]


class TreeNode(BaseModel):
    """One state of a finished search."""

    id: str
    parent: str | None
    name: str
    """Name of the state: where in the program it stands."""
    line: int | None
    """The source line of its call; None for results and dead ends."""
    status: Status
    """`expanded`: was fired; `pruned`: was given up; `dead`: failed; `result`: the agent returned; `returned`:
    an agent that works for it (a child, a voter) returned or yielded."""
    agent: str
    """The agent whose state it is."""
    score: float | None
    replies: list[str]
    """What the model answered on the way from the parent to here."""
    prompts: list[str]
    """What it is asked here; empty for results and dead ends."""
    fired: int
    tokens_generated: int
    """Tokens that the model computed on the way from the parent to here."""
    tokens_replayed: int
    """Tokens that the server's Logits Cache served instead."""
    failure: str | None = None
    """Why the branch is dead."""
    value: str | None = None
    """The result, as `repr` shows it."""


class SearchTree(BaseModel):
    """All states of a search, every parent before its children."""

    agent: str
    nodes: list[TreeNode]
    best: str | None
    """Id of the best result."""

    def path_to(self, id: str) -> list[TreeNode]:
        """The nodes from the root to the node `id`; `KeyError` if there is none."""
        nodes = {node.id: node for node in self.nodes}
        path = [nodes[id]]
        while (parent := path[-1].parent) is not None:
            path.append(nodes[parent])
        return path[::-1]
