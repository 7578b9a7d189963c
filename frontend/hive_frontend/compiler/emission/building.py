"""Builds functions from emitted syntax trees."""

from __future__ import annotations
import __future__

import ast
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import CellType, CodeType, FunctionType
from typing import Any

from hive_frontend.compiler.emission.emitter import Segment
from hive_frontend.compiler.running.hidden import CELL
from hive_frontend.compiler.running.support import Unbound

_FUTURES = sum(getattr(__future__, name).compiler_flag for name in set(__future__.all_feature_names))


def class_around(function: FunctionType) -> str | None:
    """Return the name of the class that a method was defined in; None for other functions."""
    *_, owner, _name = ["<locals>", *function.__qualname__.split(".")]
    return None if owner == "<locals>" else owner


def compile_segments(
    function: FunctionType, filename: str, segments: Sequence[Segment], hidden: Mapping[str, Any]
) -> tuple[CodeType, ...]:
    """Compile the segments of `function` with its name, file and lines, so that tracebacks look like its own."""
    original = function.__code__
    # A factory makes these names free variables of the segments; only its code constants are used, it never runs.
    around = [*original.co_freevars, *hidden, *segments[0].cells]
    factory = ast.parse(f"def factory({', '.join(around)}): pass").body[0]
    assert isinstance(factory, ast.FunctionDef)
    factory.body = [segment.function for segment in segments]
    outermost: ast.stmt = factory
    if (owner := class_around(function)) is not None:
        outermost = ast.parse(f"class {owner}: pass").body[0]
        assert isinstance(outermost, ast.ClassDef)
        outermost.body = [factory]
    with warnings.catch_warnings():
        # Python gave these warnings already when it compiled the user's code.
        warnings.simplefilter("ignore", SyntaxWarning)
        flags = original.co_flags & _FUTURES
        compiled = compile(ast.Module([outermost], []), filename, "exec", flags=flags, dont_inherit=True)
    codes = _codes_in(compiled)
    if owner is not None:
        codes = _codes_in(codes[owner])
    codes = _codes_in(codes["factory"])
    return tuple(
        codes[segment.function.name].replace(co_name=original.co_name, co_qualname=original.co_qualname)
        for segment in segments
    )


def build(
    codes: Sequence[CodeType], segments: Sequence[Segment], hidden: Mapping[str, Any], function: FunctionType
) -> tuple[Callable[..., Any], ...]:
    """Return the segments of `function` as functions that share its globals and its closure."""
    around = {name: CellType(value) for name, value in hidden.items()}
    around.update(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))

    def made(code: CodeType, segment: Segment) -> Callable[..., Any]:
        def close(cells: Mapping[str, CellType]) -> FunctionType:
            closure = tuple(cells[name] for name in code.co_freevars)
            unbound = (*(Unbound,) * segment.optional, None)
            return FunctionType(code, function.__globals__, function.__name__, unbound, closure)

        return partial(_run_in_cells, close, around, segment) if segment.cells else close(around)

    return tuple(made(code, segment) for code, segment in zip(codes, segments, strict=True))


def _run_in_cells(
    close: Callable[[Mapping[str, CellType]], FunctionType],
    around: Mapping[str, CellType],
    segment: Segment,
    /,
    *answer: Any,
    **variables: Any,
) -> Any:
    """Run a segment that closes over the cells of some of its variables. Each branch has its own cells."""
    cells = dict(around)
    for name in segment.cells:
        carried = variables.pop(name, Unbound)
        if carried is Unbound:
            carried = CellType()
        elif not answer:
            carried = CellType(carried)  # A parameter.
        cells[name] = variables[CELL + name] = carried
    return close(cells)(*answer, **variables)


def _codes_in(code: CodeType) -> dict[str, CodeType]:
    return {constant.co_name: constant for constant in code.co_consts if isinstance(constant, CodeType)}
