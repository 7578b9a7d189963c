"""A compiled agent: the functions of its states, and what they report."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodWrapperType, ModuleType
from typing import Any

from hive_frontend.call import Gather, Gen, Operation
from hive_frontend.compiler import emission, normal_form
from hive_frontend.compiler.emission import Segment
from hive_frontend.errors import HiveError
from hive_frontend.flow_graph import FlowGraph


@dataclass(frozen=True, slots=True)
class Point:
    """A suspension point: an await, and the states that end there."""

    index: int
    name: str
    line: int
    carried: tuple[str, ...]
    """Variables that the code after the await may read."""


@dataclass(frozen=True, slots=True)
class Suspended:
    """The agent reached a model call: where, which, and with which variables it goes on."""

    point: Point
    operation: Operation
    variables: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Returned:
    """The agent returned."""

    value: Any


Outcome = Suspended | Returned


class _Unbound:
    """Stands for a variable without a value on the way into a function."""


class BoundBuiltin:
    """A bound method of a built-in object, such as `found.append`, in a form that forks soundly.

    `copy.deepcopy` takes built-in functions for atoms, so that the method in the copy would still act on the
    original list.
    """

    __slots__ = ("name", "owner")

    def __init__(self, owner: Any, name: str) -> None:
        self.owner = owner
        self.name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.owner, self.name)(*args, **kwargs)


def is_bound_builtin(value: Any) -> bool:
    """Whether `value` is a method of a built-in object rather than a function of a module."""
    return isinstance(value, (BuiltinFunctionType, MethodWrapperType)) and not isinstance(
        value.__self__, (ModuleType, type(None))
    )


def _bind(value: Any) -> Any:
    return BoundBuiltin(value.__self__, value.__name__) if is_bound_builtin(value) else value


def _bound(table: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: table[name] for name in names if name in table}


@dataclass(frozen=True)
class Program:
    """A compiled agent. Immutable and shared by all runs; everything that changes is in the states."""

    points: tuple[Point, ...]
    graph: FlowGraph
    listing: Callable[[], str]
    """Writes the emitted code down, for people."""
    hidden: Mapping[str, str]
    """What the variables mean that the compiler brought in."""
    _start: FunctionType
    _resume: tuple[FunctionType, ...]
    _function: FunctionType

    def start(self, arguments: Mapping[str, Any]) -> Outcome:
        """Run the agent from its beginning to its first model call, or to its end."""
        return self._outcome(self._start(**arguments))

    def resume(self, point: Point, variables: Mapping[str, Any], reply: Any) -> Outcome:
        """Run the agent from the answer at `point` to its next model call, or to its end."""
        carried = [variables.get(name, _Unbound) for name in point.carried]
        return self._outcome(self._resume[point.index](reply, *carried))

    def outer_objects(self) -> dict[int, Any]:
        """The objects that global and enclosing names of the agent refer to, by identity.

        The agent sees these by reference, so a local variable that holds one of them keeps holding it in all
        forks: `if best is MISSING` stays true.
        """
        function = self._function
        objects = [function.__globals__[n] for n in function.__code__.co_names if n in function.__globals__]
        objects += [cell.cell_contents for cell in function.__closure__ or () if _is_set(cell)]
        return {id(found): found for found in objects}

    def describe(self, variable: str) -> str:
        """A variable of a state, for messages."""
        return describe(self.hidden, variable)

    def _outcome(self, reported: tuple[int, Operation, dict[str, Any]] | tuple[Any]) -> Outcome:
        if len(reported) == 1:
            return Returned(reported[0])
        index, operation, variables = reported
        if not isinstance(operation, (Gen, Gather)):
            raise HiveError(f"gen or gather was replaced by something that returns {operation!r}")
        return Suspended(self.points[index], operation, variables)


def describe(hidden: Mapping[str, str], variable: str) -> str:
    """A variable of a state in words, be it the user's or one that the compiler brought in."""
    return hidden.get(variable) or f"variable {variable!r}"


def _is_set(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def build_functions(function: FunctionType, filename: str, segments: Sequence[Segment]) -> list[FunctionType]:
    """The segments of `function` as functions that share its globals and its closure.

    They carry its name, file and lines, so that tracebacks through them read like those of the original.
    """
    free = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    hidden: dict[str, Callable[..., Any] | type] = {
        emission.SUSPEND: lambda point, operation, variables: (point, operation, variables),
        emission.BOUND: _bound,
        emission.LOCALS: builtins.locals,
        emission.UNBOUND: _Unbound,
        normal_form.RETURN: lambda value: (value,),
        normal_form.ITER: builtins.iter,
        normal_form.BIND: _bind,
    }
    cells = {**free, **{name: CellType(value) for name, value in hidden.items()}}
    # A factory makes these names free variables of the segments; only its code constants are used.
    factory = ast.parse(f"def factory({', '.join(cells)}): pass").body[0]
    assert isinstance(factory, ast.FunctionDef)
    factory.body = [segment.function for segment in segments]
    module = ast.Module([factory], [])
    flags = function.__code__.co_flags & _FUTURES
    compiled = compile(module, filename, "exec", flags=flags, dont_inherit=True)
    codes = _function_codes(_function_codes(compiled)["factory"])
    original = function.__code__
    built = []
    for segment in segments:
        code = codes[segment.function.name].replace(
            co_name=original.co_name, co_qualname=original.co_qualname
        )
        closure = tuple(cells[name] for name in code.co_freevars)
        built.append(FunctionType(code, function.__globals__, original.co_name, None, closure))
    return built


def _function_codes(code: CodeType) -> dict[str, CodeType]:
    return {constant.co_name: constant for constant in code.co_consts if isinstance(constant, CodeType)}


def _future_flags() -> int:
    import __future__

    return sum(getattr(__future__, name).compiler_flag for name in set(__future__.all_feature_names))


_FUTURES = _future_flags()
