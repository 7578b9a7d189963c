"""Tree of Thoughts of Game of 24 on LangGraph: a `Send` for every branch, a node that joins and prunes."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Annotated, TypedDict

from bench.game24.methods import Method, Shape
from bench.peers.by_hand import Player, Thought, best_first, root, solved
from bench.peers.sglang_client import Draw
from examples.game24.rules import Numbers

# Nothing of a benchmark leaves the machine, whatever the environment says.
os.environ["LANGSMITH_TRACING"] = os.environ["LANGCHAIN_TRACING_V2"] = "false"

from langgraph.graph import END, START, StateGraph
from langgraph.types import Send


def _collected(known: list[Thought] | None, new: list[Thought] | None) -> list[Thought]:
    """What branches bring together; None empties it for the next generation."""
    return [] if new is None else (known or []) + new


class _State(TypedDict, total=False):
    """The state of the graph."""

    player: Player
    steps_left: int
    beam: list[Thought]
    drafts: Annotated[list[Thought] | None, _collected]
    solved: bool


class _Branch(TypedDict):
    """What one branch of a fan-out is sent."""

    player: Player
    thought: Thought
    sample: int


def tree_of_thoughts(draw: Draw, shape: Shape) -> Callable[[Numbers, int], Awaitable[bool]]:
    """The graph `expand` (once per branch) -> `prune` -> `expand` ... -> end; takes the numbers and a seed."""

    # Its types know nodes by the name of their parameter.
    async def expand(state: _Branch) -> _State:
        return {"drafts": await state["player"].expand(state["thought"], [state["sample"]])}

    async def prune(state: _State) -> _State:
        drafts = state["drafts"] or []
        return {
            "steps_left": state["steps_left"] - 1,
            "beam": best_first(drafts)[: shape.breadth],
            "drafts": None,
            "solved": solved(drafts),
        }

    def fan_out(state: _State) -> list[Send] | str:
        if not state["steps_left"] or not state["beam"]:
            return END
        return [
            Send("expand", _Branch(player=state["player"], thought=thought, sample=sample))
            for thought in state["beam"]
            for sample in range(shape.branching)
        ]

    builder = StateGraph(_State)
    builder.add_node("expand", expand)
    builder.add_node("prune", prune)
    builder.add_conditional_edges(START, fan_out, ["expand", END])
    builder.add_edge("expand", "prune")
    builder.add_conditional_edges("prune", fan_out, ["expand", END])
    graph = builder.compile()

    async def search(numbers: Numbers, seed: int) -> bool:
        state: _State = {
            "player": Player(draw, Method.TOT, shape, seed),
            "steps_left": len(numbers) - 1,
            "beam": [root(numbers)],
            "drafts": [],
        }
        done = await graph.ainvoke(state)
        return bool(done["solved"])

    return search
