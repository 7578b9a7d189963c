"""The search tree of a run as data, to store as JSON, draw or analyse."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

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
    """The prompts of its calls; empty for results and dead ends."""
    fired: int
    """How many times it was fired."""
    tokens_generated: int
    """Tokens that the model computed between the parent and this state."""
    tokens_replayed: int
    """Tokens that the server's Logits Cache replayed instead."""
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
