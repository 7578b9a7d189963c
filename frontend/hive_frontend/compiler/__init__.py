"""The compiler: from an `async def` to a program whose states are data.

Python's coroutines cannot be copied, so a search cannot fork them. The compiler cuts the function at its
awaits instead: `checker` finds what it cannot cut, `normal_form` makes every await a statement of its own,
`liveness` finds the variables that each state carries, `emission` writes one plain function per state, and
`program` holds the result.
"""

from __future__ import annotations

import ast
from types import FunctionType

from hive_frontend.call import gather, gen
from hive_frontend.compiler.captures import escaping_captures
from hive_frontend.compiler.checker import Names, check
from hive_frontend.compiler.emission import Emitter, Segment
from hive_frontend.compiler.liveness import analyse
from hive_frontend.compiler.normal_form import NormalForm, normalise
from hive_frontend.compiler.program import Point, Program, build_functions, describe
from hive_frontend.compiler.source import Source, read_source
from hive_frontend.compiler.syntax import Suspend, own_nodes
from hive_frontend.errors import CompileError
from hive_frontend.flow_graph import RETURN, START, FlowEdge, FlowGraph, FlowNode, NodeKind

__all__ = ["Program", "compile_agent"]


def compile_agent(function: FunctionType, agent: str) -> Program:
    """Compile the `async def` function of the agent called `agent`.

    `CompileError` lists everything in it that cannot become states.
    """
    source = read_source(function)
    names = Names(function)
    if problems := check(source, names):
        raise CompileError(agent, problems)
    form = normalise(source.node.body)
    variables = {*names.locals, *form.hidden}
    code = function.__code__
    takes = code.co_argcount + code.co_kwonlyargcount
    parameters = code.co_varnames[: takes + bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)]
    liveness = analyse(form.body, len(form.suspensions), variables, parameters)
    if captures := escaping_captures(form.body, liveness, names.locals):
        raise CompileError(
            agent,
            [
                source.problem(
                    capture.node,
                    f"a nested function that refers to {', '.join(capture.variables)} of the agent and is kept "
                    f"across an await, in {describe(form.hidden, capture.carrier)}",
                    "move it to module level and pass it what it needs, define it after the await, or make a "
                    "list of a generator",
                )
                for capture in captures
            ],
        )
    emitter = Emitter(form, liveness, source.node)
    segments = [emitter.start(parameters), *(emitter.resume(index) for index in range(len(form.suspensions)))]
    start, *resume = build_functions(function, source.filename, segments)
    calls = _Calls(form, names, agent)
    points = tuple(
        Point(
            index=index,
            name=calls.name(suspension),
            line=suspension.lineno,
            carried=segments[index + 1].parameters[1:],
        )
        for index, suspension in enumerate(form.suspensions)
    )
    return Program(
        points=points,
        graph=_flow_graph(agent, source, points, segments, calls),
        listing=lambda: _listing(source, points, segments),
        hidden=form.hidden,
        _start=start,
        _resume=tuple(resume),
        _function=function,
    )


class _Calls:
    """What can be said about an agent's calls before any run."""

    def __init__(self, form: NormalForm, names: Names, agent: str) -> None:
        self._names = names
        self._agent = agent
        self.suspensions = form.suspensions
        self._line_names: dict[int, str] = {}
        taken: dict[int, int] = {}
        for suspension in form.suspensions:
            count = taken[suspension.lineno] = taken.get(suspension.lineno, 0) + 1
            suffix = f".{count}" if count > 1 else ""
            self._line_names[suspension.point] = f"L{suspension.lineno}{suffix}"

    def kind(self, suspension: Suspend) -> NodeKind:
        call = suspension.call
        assert isinstance(call, ast.Call)
        return "gather" if self._names.resolve(call.func) is gather else "gen"

    def name(self, suspension: Suspend) -> str:
        """The state's name: the call's, or the one that the calls of a gather share, or the line's."""
        own = self._literals(suspension.call, "name")
        shared = {name for call in self._gens(suspension) for name in self._literals(call, "name")}
        for found in (own, shared):
            if len(found) == 1:
                return str(next(iter(found)))
        return self._line_names[suspension.point]

    def agent(self, suspension: Suspend) -> str:
        """The agent that the call is attributed to, as far as the source tells."""
        found = {name for call in self._gens(suspension) for name in self._literals(call, "agent")}
        return str(next(iter(found))) if len(found) == 1 else self._agent

    def _gens(self, suspension: Suspend) -> list[ast.Call]:
        return [
            node
            for node in own_nodes(suspension.call)
            if isinstance(node, ast.Call) and self._names.resolve(node.func) is gen
        ]

    def _literals(self, call: ast.expr, keyword: str) -> set[object]:
        assert isinstance(call, ast.Call)
        return {
            given.value.value
            for given in call.keywords
            if given.arg == keyword
            and isinstance(given.value, ast.Constant)
            and given.value.value is not None
        }


def _flow_graph(
    agent: str, source: Source, points: tuple[Point, ...], segments: list[Segment], calls: _Calls
) -> FlowGraph:
    def line(number: int) -> str:
        return source.line(number).strip()

    first = source.node.lineno
    nodes = [FlowNode(START, START, "start", first, line(first), agent)]
    for point, suspension in zip(points, calls.suspensions, strict=True):
        nodes.append(
            FlowNode(
                id=str(point.index),
                name=point.name,
                kind=calls.kind(suspension),
                line=point.line,
                source=line(point.line),
                agent=calls.agent(suspension),
            )
        )
    last = source.node.end_lineno or first
    nodes.append(FlowNode(RETURN, RETURN, "return", last, line(last), agent))
    edges = []
    for origin, segment in zip([START, *(str(point.index) for point in points)], segments, strict=True):
        edges += [FlowEdge(origin, str(target)) for target in segment.leads_to]
        if segment.can_return:
            edges.append(FlowEdge(origin, RETURN))
    return FlowGraph(agent, tuple(nodes), tuple(edges))


def _listing(source: Source, points: tuple[Point, ...], segments: list[Segment]) -> str:
    headers = ["from the start"]
    headers += [f"after the answer to {point.name!r}, line {point.line}" for point in points]
    parts = [f"# {header}\n{ast.unparse(s.function)}\n" for header, s in zip(headers, segments, strict=True)]
    return f"# {source.filename}\n\n" + "\n\n".join(parts)
