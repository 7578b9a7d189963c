"""The interface between a program and the code that runs it."""

from __future__ import annotations

from dataclasses import dataclass
from types import FunctionType
from typing import Any, NamedTuple

from hive_frontend.operation import Operation


@dataclass(frozen=True, slots=True)
class Point:
    """A suspension point: an await or a yield, at which states wait."""

    index: int
    name: str
    line: int
    carried: tuple[str, ...]
    """Variables that the code after it may read, and that states carry."""
    guarded: bool = False
    """Whether it is inside a `with`, or a `try` with a `finally`."""


@dataclass(frozen=True, slots=True)
class Invoke:
    """The code awaits a plain `async def` function, whose return value is the answer."""

    function: FunctionType
    arguments: dict[str, Any]
    """The values of all its parameters, as `Program.start` takes them."""


@dataclass(frozen=True, slots=True)
class Yield:
    """An async generator yields; the value sent to it is the answer."""

    value: Any


class Suspended(NamedTuple):
    """The code reached an await or a yield: the point, what it waits for, and the variables to resume with."""

    point: Point
    operation: Operation[Any] | Invoke | Yield
    variables: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Returned:
    """The function returned."""

    value: Any


Outcome = Suspended | Returned


@dataclass(frozen=True, slots=True)
class Thrown:
    """An exception as an answer: the await raises it."""

    error: BaseException
