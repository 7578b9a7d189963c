"""The flow of a function, known before any run: its states, the transitions between them, and its helpers."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from types import FunctionType
from typing import cast

from hive_frontend.compiler.analysis.names import AWAITED, MODEL_CALLS, Names, is_own_operation
from hive_frontend.compiler.analysis.source import Source
from hive_frontend.compiler.analysis.syntax import Nested, Suspend
from hive_frontend.compiler.emission.emitter import Segment
from hive_frontend.compiler.flow_graph import RETURN, START, FlowEdge, FlowGraph, FlowNode, NodeKind
from hive_frontend.compiler.lowering.joins import Join

_HANDLES: dict[str, NodeKind] = {"next": "next", "resume": "resume", "delete": "delete"}


@dataclass(frozen=True)
class Wait:
    """A suspension point in the flow."""

    name: str
    kind: NodeKind
    line: int
    source: str
    agent: str | None
    """The agent that the call is attributed to, if not the agent itself."""
    helper: FunctionType | None
    """The `async def` function that is awaited, if it is known."""


@dataclass(frozen=True, eq=False)
class OwnFlow:
    """One function's part of a flow graph."""

    name: str
    text: str
    """The source of the function in a normalised layout."""
    first: tuple[int, str]
    """Number and text of its first line."""
    last: tuple[int, str]
    waits: tuple[Wait, ...]
    leads_to: tuple[tuple[int, ...], ...]
    """Per segment, beginning with the start: the suspension points that it can reach."""
    returns: tuple[bool, ...]
    """Per segment: whether it can return."""
    flow_of: Callable[[FunctionType], OwnFlow] = field(repr=False)
    """Returns the flow of a helper."""

    def origins(self) -> Iterator[tuple[str, tuple[int, ...], bool]]:
        """Yield, per segment: its origin node, the suspension points that it can reach, and whether it can return."""
        names = [START, *map(str, range(len(self.waits)))]
        yield from zip(names, self.leads_to, self.returns, strict=True)


def own_flow(
    function: FunctionType,
    source: Source,
    names: Names,
    suspensions: Sequence[Suspend],
    segments: Sequence[Segment],
    flow_of: Callable[[FunctionType], OwnFlow],
) -> OwnFlow:
    """Return the flow of `function`."""

    def line(number: int) -> tuple[int, str]:
        return number, source.line(number).strip()

    waits = tuple(_waits(suspensions, names, source))
    reachable = [_reachable(segments, number, len(waits)) for number in range(len(waits) + 1)]
    return OwnFlow(
        name=function.__name__,
        text=_text(source.node),
        first=line(source.node.lineno),
        last=line(source.node.end_lineno or source.node.lineno),
        waits=waits,
        leads_to=tuple(tuple(sorted(at for at in reached if at < len(waits))) for reached, _ in reachable),
        returns=tuple(returns for _, returns in reachable),
        flow_of=flow_of,
    )


def _reachable(segments: Sequence[Segment], first: int, waits: int) -> tuple[set[int], bool]:
    """Return the suspension points that a segment can reach, also through joins, and whether it can return."""
    reached: set[int] = set()
    returns = False
    todo = [segments[first]]
    while todo:
        segment = todo.pop()
        returns |= segment.can_return
        todo += [segments[1 + at] for at in segment.leads_to if at >= waits and at not in reached]
        reached.update(segment.leads_to)
    return reached, returns


def _waits(suspensions: Sequence[Suspend], names: Names, source: Source) -> Iterator[Wait]:
    taken: dict[int, int] = {}
    for suspension in suspensions:
        if isinstance(suspension, Join):
            return  # Joins are at the end of the list.
        line = suspension.lineno
        taken[line] = taken.get(line, 0) + 1
        written = suspension.written
        awaited = written.value if isinstance(written, ast.Await) else None
        helper = names.helper(awaited.func) if isinstance(awaited, ast.Call) else None
        name = "yield" if isinstance(written, ast.Yield) else None
        agent = None
        if isinstance(awaited, ast.Call):
            name, agent = _state_name(awaited, names), _agent(awaited, names)
        yield Wait(
            name=name or f"L{line}" + (f".{taken[line]}" if taken[line] > 1 else ""),
            kind=_kind(written, names),
            line=line,
            source=source.line(line).strip(),
            agent=agent,
            helper=helper,
        )


def _kind(written: ast.AST, names: Names) -> NodeKind:
    if isinstance(written, ast.Yield):
        return "yield"
    if isinstance(written, ast.Await) and isinstance(written.value, ast.Call):
        function = written.value.func
        if (operation := _operation(function, names)) is not None:
            return cast(NodeKind, operation) if operation in AWAITED else "call"
        if isinstance(function, ast.Attribute) and names.resolve(function) is None:
            return _HANDLES.get(function.attr, "call")
    return "call"


def _operation(function: ast.expr, names: Names) -> str | None:
    called = names.resolve(function)
    return called.__name__ if isinstance(called, FunctionType) and is_own_operation(called) else None


def _state_name(call: ast.Call, names: Names) -> str | None:
    """Return the name of the state: that of the call, or the one that the calls of a gather share."""
    operation = _operation(call.func, names)
    if operation is None:
        return None
    own = _literals(call, "name")
    shared = {name for inner in _parts(call, names) for name in _literals(inner, "name")}
    for found in (own, shared):
        if len(found) == 1:
            return str(next(iter(found)))
    if operation == "tool" and call.args:
        match call.args[0]:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                return name
    return None


def _agent(call: ast.Call, names: Names) -> str | None:
    found = {name for inner in _parts(call, names) for name in _literals(inner, "agent")}
    return str(next(iter(found))) if len(found) == 1 else None


def _parts(call: ast.Call, names: Names) -> list[ast.Call]:
    """Return the model calls of one suspension point: the call itself, or the parts of a gather. Awaits inside its
    arguments do not count; they have states of their own."""
    if _operation(call.func, names) != "gather":
        return [call] if _operation(call.func, names) in MODEL_CALLS else []
    found: list[ast.Call] = []
    todo: list[ast.AST] = [*call.args]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Await):
            continue
        if isinstance(node, ast.Call) and _operation(node.func, names) in MODEL_CALLS:
            found.append(node)
        todo += ast.iter_child_nodes(node)
    return found


def _literals(call: ast.Call, keyword: str) -> set[object]:
    return {
        given.value.value
        for given in call.keywords
        if given.arg == keyword and isinstance(given.value, ast.Constant) and given.value.value is not None
    }


def _text(node: ast.AsyncFunctionDef) -> str:
    """Return the source of a function without decorators and docstrings."""
    (copied,) = ast.parse(ast.unparse(node)).body
    assert isinstance(copied, ast.AsyncFunctionDef)
    copied.decorator_list = []
    for inner in ast.walk(copied):
        if isinstance(inner, Nested) and not isinstance(inner, ast.Lambda) and ast.get_docstring(inner):
            inner.body = inner.body[1:] or [ast.Pass()]
    return ast.unparse(copied)


def _with_helpers(flow: OwnFlow) -> dict[OwnFlow, str]:
    """Return `flow` and all its helpers, each with a prefix for the ids of its nodes."""
    found = {flow: ""}
    todo = [flow]
    while todo:
        for wait in todo.pop(0).waits:
            if wait.helper is not None and (helper := flow.flow_of(wait.helper)) not in found:
                taken = sum(known.name == helper.name for known in found)
                found[helper] = f"{helper.name}_{taken + 1}_" if taken else f"{helper.name}_"
                todo.append(helper)
    return found


def code_hash(flow: OwnFlow) -> str:
    """Return a hash of the code of the function and its helpers."""
    texts = "\0".join(known.text for known in _with_helpers(flow))
    return blake2b(texts.encode(), digest_size=16).hexdigest()


def flow_graph(agent: str, flow: OwnFlow) -> FlowGraph:
    """Return the graph of the function and its helpers."""
    prefixes = _with_helpers(flow)
    nodes: list[FlowNode] = []
    edges: list[FlowEdge] = []
    for known, prefix in prefixes.items():
        nodes += [
            FlowNode(f"{prefix}{index}", wait.name, wait.kind, wait.line, wait.source, wait.agent or agent)
            for index, wait in enumerate(known.waits)
        ]
        for origin, reached, returns in known.origins():
            if known is not flow and origin == START:
                continue
            edges += [FlowEdge(prefix + origin, f"{prefix}{target}") for target in reached]
            if returns and known is flow:
                edges.append(FlowEdge(origin, RETURN))
        for index, wait in enumerate(known.waits):
            if wait.helper is not None:
                helper = flow.flow_of(wait.helper)
                edges += _call_edges(f"{prefix}{index}", helper, prefixes[helper])
    start = FlowNode(START, START, "start", *flow.first, agent)
    end = FlowNode(RETURN, RETURN, "return", *flow.last, agent)
    is_open = any(wait.kind == "call" and wait.helper is None for known in prefixes for wait in known.waits)
    return FlowGraph(agent, (start, *nodes, end), tuple(edges), is_open)


def _call_edges(caller: str, helper: OwnFlow, prefix: str) -> Iterator[FlowEdge]:
    """Yield the edges into the first states of a helper, and back from its last states."""
    for origin, reached, returns in helper.origins():
        if origin == START:
            yield from (FlowEdge(caller, f"{prefix}{target}") for target in reached)
        elif returns:
            yield FlowEdge(prefix + origin, caller)
