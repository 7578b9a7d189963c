"""What a compiled agent is: graph, emitted code, tracebacks, closures, states as data."""

from __future__ import annotations

import asyncio
import pickle
import traceback
from textwrap import dedent

import pytest
from hive_frontend import Agent, Once, agent, arun, gather, gen, run
from hive_frontend.compiler import Invoke, Program, Returned, Suspended, Thrown, Yield, program_of
from hive_frontend.errors import ForeignAwait
from hive_frontend.operations import fork
from hive_frontend.testing import ScriptedModel

from tests.frontend.oracle import ask, define


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


# Programs: what the runtime builds on


def program_in(source: str, name: str = "program", **names: object) -> Program:
    return program_of(define(dedent(source), name, **names))


def test_a_call_of_a_helper_is_handed_to_the_runtime() -> None:
    function = define(
        dedent(
            """
            async def helper(x, /, *more, y=2, **others):
                return x

            async def program(f, *args):
                return await f(*args, k=1)
            """
        )
    )
    helper = function.__globals__["helper"]
    outcome = program_of(function).start({"f": helper, "args": (1, 5)})
    assert isinstance(outcome, Suspended)
    invoked = outcome.operation
    assert invoked == Invoke(helper, {"x": 1, "more": (5,), "y": 2, "others": {"k": 1}})
    assert isinstance(invoked, Invoke)
    program = program_of(helper)
    assert program is program_of(helper)
    assert program.start(invoked.arguments) == Returned(1)


def test_objects_say_themselves_what_a_call_of_them_awaits() -> None:
    class Callable:
        def __hive_call__(self, *args: object, **kwargs: object) -> object:
            return ask(f"{args} {kwargs}")

    class Handle:
        def __hive_operation__(self) -> object:
            return ask("handle")

    program = program_in("async def program(a, b):\n    await a(1, k=2)\n    await b\n")
    outcome = program.start({"a": Callable(), "b": Handle()})
    assert isinstance(outcome, Suspended)
    assert outcome.operation == ask("(1,) {'k': 2}")
    outcome = program.resume(outcome.point, outcome.variables, None)
    assert isinstance(outcome, Suspended)
    assert outcome.operation == ask("handle")


@pytest.mark.parametrize("wrong", [lambda: 3, lambda: asyncio.sleep(0), asyncio.sleep, dict])
def test_what_cannot_be_awaited_is_said_in_the_line_of_the_await(wrong: object) -> None:
    program = program_in("async def program(f):\n    x = 1\n    await f()\n")
    with pytest.raises(ForeignAwait, match=r"wrap other awaitables in tool\(") as caught:
        program.start({"f": wrong})
    (line,) = (f.lineno for f in traceback.extract_tb(caught.value.__traceback__) if f.name == "program")
    assert line == 3


def test_the_traceback_of_a_helper_is_the_native_one() -> None:
    def helper() -> None:
        raise ValueError("in the helper")

    program = program_in("async def program(f):\n    await f()\n")
    outcome = program.start({"f": lambda: ask("q")})
    assert isinstance(outcome, Suspended)
    try:
        helper()
    except ValueError as error:
        thrown = Thrown(error)
    with pytest.raises(ValueError, match="in the helper") as caught:
        program.resume(outcome.point, outcome.variables, thrown)
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names[-3:] == ["program", "test_the_traceback_of_a_helper_is_the_native_one", "helper"]


def test_async_generators_yield_to_the_runtime() -> None:
    program = program_in("async def program(n):\n    got = yield n\n    yield got + 1\n")
    assert program.is_generator
    outcome = program.start({"n": 1})
    assert isinstance(outcome, Suspended)
    assert (outcome.operation, outcome.point.name) == (Yield(1), "yield")
    outcome = program.resume(outcome.point, outcome.variables, 5)
    assert isinstance(outcome, Suspended)
    assert outcome.operation == Yield(6)
    assert program.resume(outcome.point, outcome.variables, None) == Returned(None)


def test_shared_variables_are_found() -> None:
    source = """
        async def program(a: Shared[int], b: "hive.Shared[list[int]]", c: list, *rest: Shared, d: Shared[int]):
            e: Shared[dict] = {}
            f: dict = {}
        """
    program = program_in(source, Shared=fork.Shared, hive=fork)
    assert program.shared == {"a", "b", "d", "e"}


def test_the_hash_is_of_what_the_code_does() -> None:
    source = """
        async def helper(x):
            return await ask(x)

        async def program(a):
            return await helper(a) + 1
        """
    layout = """
        async def helper(x):
            '''Says so.'''
            return (await ask(
                x
            ))

        async def program(a):
            return await helper(a) + 1  # one
        """
    hashes = [program_in(text).code_hash for text in (source, layout, source.replace("ask(x)", "ask(x + 1)"))]
    assert hashes[0] == hashes[1] != hashes[2]


def test_helpers_are_in_the_graph() -> None:
    program = program_in(
        """
        async def again(n):
            if n:
                await gen("a", name="a")
                await again(n - 1)
            else:
                await gen("b", name="b")

        async def program(n):
            await again(n)
            await gen("c", name="c")
        """,
        gen=gen,
    )
    graph = program.graph
    assert set(program.state_names) == {"a", "b", "c"}
    assert not graph.open
    assert [(node.id, node.name, node.kind) for node in graph.nodes] == [
        ("start", "start", "start"),
        ("0", "L10", "call"),
        ("1", "c", "gen"),
        ("again_0", "a", "gen"),
        ("again_1", "L5", "call"),
        ("again_2", "b", "gen"),
        ("return", "return", "return"),
    ]
    assert {(edge.source, edge.target) for edge in graph.edges} == {
        ("start", "0"),
        ("0", "1"),
        ("1", "return"),
        ("0", "again_0"),
        ("0", "again_2"),
        ("again_2", "0"),
        ("again_1", "0"),
        ("again_0", "again_1"),
        ("again_1", "again_0"),
        ("again_1", "again_2"),
        ("again_2", "again_1"),
        ("again_1", "again_1"),
    }


def test_a_graph_with_calls_of_unknown_functions_is_open() -> None:
    program = program_in("async def program(f):\n    await f.next()\n    await f()\n")
    assert program.graph.open
    assert [node.kind for node in program.graph.nodes] == ["start", "next", "call", "return"]


def test_a_graph_has_no_edges_past_a_finally_that_leaves() -> None:
    program = compiled(
        """
        async def program(a):
            try:
                await gen("a", name="try")
            except ValueError:
                return await gen("b", name="except")
            finally:
                await gen("c", name="finally")
        """
    )
    assert edges(program) == {
        ("start", "try"),
        ("start", "except"),
        ("start", "finally"),
        ("try", "except"),
        ("try", "finally"),
        ("except", "finally"),
        ("finally", "return"),
    }


def test_exceptions_that_a_state_carries_can_be_pickled() -> None:
    program = program_in(
        """
        async def program(a):
            try:
                {}[a]
            except KeyError:
                await ask("q")
                raise
        """
    )
    outcome = program.start({"a": "k"})
    assert isinstance(outcome, Suspended)
    variables = pickle.loads(pickle.dumps(outcome.variables))
    with pytest.raises(KeyError, match="k"):
        program.resume(outcome.point, variables, "x")
    (variable,) = variables
    assert program.describe(variable) == "the exception that the except in line 5 handles"
