"""The same search three times: under Hive, on LangGraph, and by hand on asyncio.

Each arm makes the same requests to the same model, and finds the same. LangGraph's is the program of its own
tutorials: a `Send` for every branch, a node that joins and prunes, a compiled graph. The one by hand keeps no
accounts but its own: it is as fast as a person would write it, and can neither show, resume nor stream anything.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable
from typing import Annotated, Literal, TypedDict

from hive_frontend.client.contract import Client, Request

from bench.frontend import workload
from bench.frontend.workload import BREADTH, ROOT, STEPS, Found, Thought
from hive import arun
from hive.testing import FunctionModel

# Nothing of a benchmark leaves the machine, whatever the environment says.
os.environ["LANGSMITH_TRACING"] = os.environ["LANGCHAIN_TRACING_V2"] = "false"

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

ArmName = Literal["hive", "langgraph", "langgraph_checkpointed", "asyncio"]
Search = Callable[[int], Awaitable[list[Found]]]
"""A search with a seed; its results, best first."""


def searches(model: FunctionModel) -> dict[ArmName, Search]:
    return {
        "hive": hive(model),
        "langgraph": langgraph(model, checkpointed=False),
        "langgraph_checkpointed": langgraph(model, checkpointed=True),
        "asyncio": by_hand(model),
    }


def hive(model: Client) -> Search:
    """`arun`, with seeds and accounting; the search tree is made only when it is looked at."""

    async def search(seed: int) -> list[Found]:
        result = await arun(workload.climb, workload.TASK, model=model, seed=seed)
        return [Found(each.value, each.score or 0.0) for each in result.results]

    return search


def by_hand(model: Client) -> Search:
    """Beam search with `asyncio.gather`: a task for every call."""

    async def expand(thought: Thought, request: Request) -> Thought:
        completion = await model.complete(request)
        return workload.next_thought(thought, request.sample, completion.text)

    async def search(seed: int) -> list[Found]:
        beam = drafts = [ROOT]
        for _ in range(STEPS):
            calls = [
                expand(thought, request)
                for thought in beam
                for request in workload.requests(workload.TASK, thought, seed, "by-hand")
            ]
            drafts = await asyncio.gather(*calls)
            beam = workload.best_first(drafts)[:BREADTH]
        return workload.found(drafts)

    return search


def _collected(known: list[Thought] | None, new: list[Thought] | None) -> list[Thought]:
    """What branches bring together; None empties it for the next step."""
    return [] if new is None else (known or []) + new


class _State(TypedDict, total=False):
    """The state of the graph."""

    seed: int
    depth: int
    beam: list[Thought]
    drafts: Annotated[list[Thought] | None, _collected]
    results: list[Found]


class _Branch(TypedDict):
    """What one branch of a fan-out is sent."""

    thought: Thought
    request: Request


def langgraph(model: Client, *, checkpointed: bool) -> Search:
    """The graph `propose` (once per branch) -> `prune` -> `propose` ... -> end."""
    numbers = itertools.count()

    # Its types know nodes by the name of their parameter.
    async def propose(state: _Branch) -> _State:
        completion = await model.complete(state["request"])
        return {"drafts": [workload.next_thought(state["thought"], state["request"].sample, completion.text)]}

    async def prune(state: _State) -> _State:
        depth = state["depth"] + 1
        if depth == STEPS:
            return {"depth": depth, "results": workload.found(state["drafts"] or ())}
        return {"depth": depth, "beam": workload.best_first(state["drafts"] or ())[:BREADTH], "drafts": None}

    def fan_out(state: _State) -> list[Send] | str:
        if state["depth"] == STEPS:
            return END
        return [
            Send("propose", _Branch(thought=thought, request=request))
            for thought in state["beam"]
            for request in workload.requests(workload.TASK, thought, state["seed"], "langgraph")
        ]

    builder = StateGraph(_State)
    builder.add_node("propose", propose)
    builder.add_node("prune", prune)
    builder.add_conditional_edges(START, fan_out, ["propose", END])
    builder.add_edge("propose", "prune")
    builder.add_conditional_edges("prune", fan_out, ["propose", END])
    plain = None if checkpointed else builder.compile()

    async def search(seed: int) -> list[Found]:
        # A store that only grew from search to search would be slow for a reason of its own.
        graph = plain or builder.compile(checkpointer=InMemorySaver())
        state: _State = {"seed": seed, "depth": 0, "beam": [ROOT], "drafts": []}
        done = await graph.ainvoke(state, {"configurable": {"thread_id": str(next(numbers))}})
        results: list[Found] = done["results"]
        return results

    return search
