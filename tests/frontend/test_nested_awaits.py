"""A state is named by its own call, whatever is awaited inside it, and supervisors branch where they are told to."""

from __future__ import annotations

import asyncio
import os
from collections import Counter

import pytest
from hive_frontend import TreeOfThoughts, agent, arun, choose, gather, gen, tool
from hive_frontend.testing import FunctionModel
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.frontend.nested_awaits import NAMES, NestedAwaits, Wait, nested_awaits
from tests.frontend.oracle import define

_FIRINGS = 200
"""Where a search takes more, it is left out."""
CALLED: list[str] = []


async def note(text: str, more: str) -> str:
    CALLED.append("note")
    return f"noted {len(text)}"


async def measure(text: str, more: str) -> int:
    CALLED.append("measure")
    return len(text) + len(more)


def assert_named_by_their_own_calls(program: NestedAwaits, branch_at: str) -> None:
    """Compare the states of a compiled program, and how often a search fires them, with what was written."""
    function = define(
        program.source, gen=gen, tool=tool, gather=gather, choose=choose, note=note, measure=measure
    )
    compiled = agent(function)
    nodes = compiled.graph().nodes[1:-1]
    names = [wait.name for wait in program.waits]
    assert [node.name for node in nodes] == names
    assert [node.agent for node in nodes] == [wait.agent or "program" for wait in program.waits]
    if branch_at not in names:
        return
    fired: Counter[str | None] = Counter()
    tools, branches = 0, 1
    for wait in program.waits:
        branches *= 2 if wait.name == branch_at else 1
        fired[wait.name] += branches
        tools += branches * wait.tools
    if fired.total() > _FIRINGS:
        return
    search = TreeOfThoughts(branch_at=branch_at, branching=2, breadth=_FIRINGS, limit=None)
    CALLED.clear()
    result = asyncio.run(arun(compiled, model=FunctionModel(lambda request: "answer"), supervisor=search))
    found: Counter[str | None] = Counter()
    for state in result.tree.nodes:
        found[state.name] += state.fired
    assert +found == fired
    assert len(result.results) == branches
    assert len(CALLED) == tools


def test_a_tool_that_is_given_a_named_answer_is_not_branched_at() -> None:
    source = "async def program():\n    await tool(note, await gen('text', name='patch'), more='text')\n"
    waits = (Wait("patch"), Wait("note", tools=1))
    assert_named_by_their_own_calls(NestedAwaits(source, waits), "patch")


@pytest.mark.timeout(0 if "HIVE_ORACLE_EXAMPLES" in os.environ else 1800)
@settings(
    max_examples=int(os.environ.get("HIVE_ORACLE_EXAMPLES", "100")),
    deadline=None,
    derandomize="HIVE_ORACLE_EXAMPLES" not in os.environ,
    suppress_health_check=list(HealthCheck),
)
@given(nested_awaits(), st.sampled_from(NAMES))
def test_generated_programs(program: NestedAwaits, branch_at: str) -> None:
    assert_named_by_their_own_calls(program, branch_at)
