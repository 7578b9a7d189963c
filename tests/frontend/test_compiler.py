"""What a compiled agent is: graph, emitted code, tracebacks, closures, states as data."""

from __future__ import annotations

import pickle
import traceback
from textwrap import dedent

import pytest
from hive_frontend import Agent, Once, agent, arun, gather, gen, run
from hive_frontend.compiler.program import Returned, Suspended
from hive_frontend.testing import ScriptedModel

from tests.frontend.oracle import define


def compiled(source: str) -> Agent[..., object]:
    return Agent(define(dedent(source), gen=gen, gather=gather))


def edges(program: Agent[..., object]) -> set[tuple[str, str]]:
    names = {node.id: node.name for node in program.graph().nodes}
    return {(names[edge.source], names[edge.target]) for edge in program.graph().edges}


def test_flow_graph_of_a_loop() -> None:
    program = compiled(
        """
        async def program(a):
            while a:
                x = await gen("p", name="propose")
                votes = await gather(*[gen("v", name="value", agent="judge") for _ in range(3)])
                if votes:
                    return x
        """
    )
    assert edges(program) == {
        ("start", "propose"),
        ("start", "return"),
        ("propose", "value"),
        ("value", "propose"),
        ("value", "return"),
    }
    graph = program.graph()
    assert graph.state_names == ("propose", "value")
    assert [(node.kind, node.line, node.agent) for node in graph.nodes] == [
        ("start", 2, "program"),
        ("gen", 4, "program"),
        ("gather", 5, "judge"),
        ("return", 7, "program"),
    ]
    assert graph.node("0").source == 'x = await gen("p", name="propose")'
    with pytest.raises(KeyError):
        graph.node("9")


def test_flow_graph_has_no_impossible_edges() -> None:
    program = compiled(
        """
        async def program(a):
            while True:
                await gen("a", name="first")
                await gen("b", name="second")
                if a:
                    break
            else:
                await gen("never", name="never")
            return await gen("c", name="last")
        """
    )
    assert edges(program) == {
        ("start", "first"),
        ("first", "second"),
        ("second", "first"),
        ("second", "last"),
        ("last", "return"),
        ("never", "last"),
    }


def test_unnamed_states_are_called_by_their_lines() -> None:
    program = compiled(
        """
        async def program(a):
            return await gen("x"), await gen("y"), await gather(gen("z", name="z"), gen("w", name="w"))
        """
    )
    assert program.graph().state_names == ("L3", "L3.2", "L3.3")


def test_drawings_of_the_graph() -> None:
    program = compiled('async def program(a):\n    x = await gen("\\"<q>\\"", name="ask")\n')
    dot = program.graph().to_dot()
    assert dot.startswith('digraph "program" {')
    assert '"0" [shape=box, style=rounded, label="ask\\nline 2"' in dot
    assert '"start" -> "0";' in dot
    mermaid = program.graph().to_mermaid()
    assert mermaid.splitlines()[0] == "flowchart TD"
    assert '  n_0["ask<br/>line 2"]' in mermaid
    assert "  n_start --> n_0" in mermaid


def test_emitted_code_is_legible() -> None:
    program = compiled(
        """
        async def program(n):
            total = 0
            for i in range(n):
                total += len(await gen(f"{i}", name="ask"))
            return total
        """
    )
    assert "# after the answer to 'ask', line 5" in program.source()
    assert "for i in _hive_for_1:" in program.source()


def test_a_state_carries_only_what_is_still_needed() -> None:
    program = compiled(
        """
        async def program(a, b):
            used, unused = a, b
            overwritten = 1
            answer = await gen("q")
            overwritten = answer
            return used, overwritten
        """
    )
    assert [point.carried for point in program.program.points] == [("used",)]


def test_states_can_be_pickled_and_resumed() -> None:
    program = compiled(
        """
        async def program(a):
            seen = []
            for word in zip(a, enumerate(reversed(a))):
                seen.append((word, await gen(f"{word}", name="ask")))
            return seen
        """
    ).program
    outcome = program.start({"a": ["x", "y", "z"]})
    rounds = 0
    while isinstance(outcome, Suspended):
        point, operation, variables = pickle.loads(
            pickle.dumps((outcome.point, outcome.operation, outcome.variables))
        )
        outcome = program.resume(point, variables, operation.messages[0].content.upper())
        rounds += 1
    assert rounds == 3
    assert outcome == Returned(
        [
            (("x", (0, "z")), "('X', (0, 'Z'))"),
            (("y", (1, "y")), "('Y', (1, 'Y'))"),
            (("z", (2, "x")), "('Z', (2, 'X'))"),
        ]
    )


def test_tracebacks_show_the_users_lines() -> None:
    @agent
    async def program(n: int) -> float:
        total = 1.0
        for i in range(n):
            await gen(f"{i}")
            total /= 1 - i  # fails in the second turn
        return total

    with pytest.raises(ZeroDivisionError) as caught:
        run(program, 3, model=ScriptedModel({"*": "x"}))
    frame = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert frame.name == "program"
    assert frame.line == "total /= 1 - i  # fails in the second turn"
    assert frame.filename == __file__
    assert "raised by agent 'program' after state 'L" in caught.value.__notes__[0]


LIMIT = 2


def test_closures_defaults_and_globals() -> None:
    suffix = "!"

    @agent
    async def program(a: str, *, times: int = LIMIT) -> list[str]:
        out = []
        for _ in range(min(times, LIMIT)):
            out.append(await gen(a + suffix))  # noqa: PERF401
        return out

    suffix = "?"
    model = ScriptedModel(lambda request: request.text)
    assert run(program, "a", model=model).value == ["a?", "a?"]
    assert run(program, a="b", times=1, model=model).value == ["b?"]


def test_an_agent_keeps_the_face_of_its_function() -> None:
    @agent(name="other/name")
    async def program(a: str) -> str:
        """Says it."""
        return await gen(a)

    assert program.__doc__ == "Says it."
    assert program.__name__ == "program"
    assert program.name == "other/name"
    assert repr(program) == "<agent other/name(a: 'str') -> 'str'>"
    with pytest.raises(TypeError, match=r"agent other/name.*missing a required argument: 'a'"):
        run(program, model=ScriptedModel([]))


async def test_calls_by_other_names_are_recognised() -> None:
    import hive_frontend as hv

    ask = hv.gen

    @agent(supervisor=Once())
    async def program() -> list[str]:
        return [await hv.gen("a"), await ask("b"), *await hv.gather(hv.gen("c"))]

    result = await arun(program, model=ScriptedModel(lambda request: request.text))
    assert result.value == ["a", "b", "c"]
    assert [node.kind for node in program.graph().nodes] == ["start", "gen", "gen", "gather", "return"]
