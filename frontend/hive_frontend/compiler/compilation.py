"""The compiler driver: runs the passes one after the other."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Iterator
from types import FunctionType

from hive_frontend.compiler.analysis.cells import (
    captured_by_classes,
    captured_iteration_variables,
    cell_variables,
)
from hive_frontend.compiler.analysis.checker import check
from hive_frontend.compiler.analysis.names import Names
from hive_frontend.compiler.analysis.source import Source, read_source
from hive_frontend.compiler.analysis.syntax import guarded_points, own_nodes
from hive_frontend.compiler.analysis.variables import plain_variables, shared_names
from hive_frontend.compiler.emission.building import build, class_around, compile_segments
from hive_frontend.compiler.emission.emitter import Emitter, Segment
from hive_frontend.compiler.emission.flow import own_flow
from hive_frontend.compiler.lowering.joins import add_joins
from hive_frontend.compiler.lowering.liveness import analyse
from hive_frontend.compiler.lowering.normal_form import NormalForm, normalise
from hive_frontend.compiler.lowering.preparation import prepare, without_annotations
from hive_frontend.compiler.program import Program
from hive_frontend.compiler.running.outcome import Point
from hive_frontend.compiler.running.support import functions, parameters_of
from hive_frontend.errors import CompileError, Problem

_PROGRAM = "__hive_program__"
"""Attribute of a function that holds its program. Each refers to the other, so both are freed together."""


def program_of(function: FunctionType, name: str | None = None) -> Program:
    """Return the program of an `async def` function, with or without `yield`, under a name. It is compiled only once.

    Raises:
        CompileError: if the function, or a helper that it is known to call, uses unsupported constructs; lists all.
    """
    program = _known(function) or _compile_with_helpers(function, name or function.__name__)
    return program if name is None else program.named(name)


def _known(function: FunctionType) -> Program | None:
    program = function.__dict__.get(_PROGRAM)
    # Decorators that use `functools.wraps` copy attributes.
    return program if isinstance(program, Program) and program.function is function else None


def _compile_with_helpers(function: FunctionType, name: str) -> Program:
    problems: list[Problem] = []
    programs: dict[FunctionType, Program] = {}
    todo = [function]
    seen = {function}
    while todo:
        current = todo.pop(0)
        try:
            source, names = read_source(current), Names(current)
            helpers = [found for found in _helpers(source, names) if _known(found) is None]
            todo += [helper for helper in helpers if helper not in seen]
            seen.update(helpers)
            programs[current] = _compile(current, source, names)
        except CompileError as error:
            problems += error.problems
    if problems:
        raise CompileError(name, problems)
    for compiled, program in programs.items():
        compiled.__dict__[_PROGRAM] = program
    return programs[function]


def _helpers(source: Source, names: Names) -> Iterator[FunctionType]:
    for node in own_nodes(*source.node.body):
        if isinstance(node, ast.Await) and isinstance(node.value, ast.Call):
            helper = names.helper(node.value.func)
            if helper is not None:
                yield helper


def _compile(function: FunctionType, source: Source, names: Names) -> Program:
    form, segments = _cut(function, source, names)
    flow = own_flow(
        function, source, names, form.suspensions, segments, lambda helper: program_of(helper).flow
    )
    guarded = set(guarded_points(form.body))
    joins = len(form.suspensions) - len(flow.waits)
    labels = [*((wait.name, wait.line) for wait in flow.waits), *[("", 0)] * joins]
    points = tuple(
        Point(index, name, line, segment.carried, index in guarded)
        for index, ((name, line), segment) in enumerate(zip(labels, segments[1:], strict=True))
    )
    hidden = functions(points)
    try:
        codes = compile_segments(function, source.filename, segments, hidden)
    except SyntaxError as error:
        # Some `with` and `finally` blocks are one block deeper in the emitted code than in the source.
        where = next(
            (n for n in ast.walk(source.node) if getattr(n, "lineno", 0) == error.lineno), source.node
        )
        fix = (
            "move the inner blocks into an `async def` helper, and await that; a `with` counts as two blocks"
        )
        raise CompileError(function.__name__, [source.problem(where, str(error.msg), fix)]) from error
    make = functools.partial(build, codes, segments, hidden)
    start, *resume = make(function)
    return Program(
        name=function.__name__,
        function=function,
        points=points,
        is_generator=inspect.isasyncgenfunction(function),
        hidden=form.hidden,
        shared=shared_names(source.node, names),
        joined=joins > 0,
        flow=flow,
        listing=lambda: _listing(source, points, segments),
        _make=make,
        _start=start,
        _resume=tuple(resume),
    )


def _cut(function: FunctionType, source: Source, names: Names) -> tuple[NormalForm, list[Segment]]:
    if problems := check(source, names):
        raise CompileError(function.__name__, problems)
    body = prepare(source.node, class_around(function))
    if problems := [
        source.problem(
            definition,
            f"a class whose methods use variables of the agent ({', '.join(captured)}), which branches would share",
            "define the class at module level, and pass its objects the values that they need",
        )
        for definition, captured in captured_by_classes(function, body, names)
    ]:
        raise CompileError(function.__name__, problems)
    cells = cell_variables(function, body, names)
    form = normalise(without_annotations(body, cells), names, cells)
    if problems := [
        source.problem(
            closure,
            f"a nested function that uses variables ({', '.join(used)}) of a comprehension with an await in it",
            f"pass the value as a default, `lambda {used[0]}={used[0]}: ...`, or write a for loop",
        )
        for closure, used in captured_iteration_variables(form.body, names)
    ]:
        raise CompileError(function.__name__, problems)
    add_joins(form.body, form.suspensions)
    parameters = parameters_of(function)
    # `Shared` variables that nested functions use stay shared between branches, too.
    always = cells & shared_names(source.node, names)
    liveness = analyse(form, {*names.locals, *form.hidden}, parameters, cells, always)
    held = names.locals - plain_variables(source.node, form.body, names)
    emitter = Emitter(form, liveness, source.node, cells, held)
    resumed = [emitter.resume(index) for index in range(len(form.suspensions))]
    return form, [emitter.start(parameters), *resumed]


def _listing(source: Source, points: tuple[Point, ...], segments: list[Segment]) -> str:
    headers = ["from the start"]
    headers += [
        f"after the answer to {point.name!r}, line {point.line}" if point.line else "after a join"
        for point in points
    ]
    parts = [f"# {header}\n{ast.unparse(s.function)}\n" for header, s in zip(headers, segments, strict=True)]
    return f"# {source.filename}\n\n" + "\n\n".join(parts)
