"""What passes between a program and whoever runs it."""

from __future__ import annotations

from dataclasses import dataclass
from types import FunctionType
from typing import Any, NamedTuple

from hive_frontend.operation import Operation


@dataclass(frozen=True, slots=True)
class Point:
    """A suspension point: an await or a yield, and the states that end there."""

    index: int
    name: str
    line: int
    carried: tuple[str, ...]
    """Variables that the code after it may read."""
    guarded: bool = False
    """Whether a `with` or `finally` around it has something to do at the end."""


@dataclass(frozen=True, slots=True)
class Invoke:
    """The code awaits a plain `async def` function: what it returns is the answer."""

    function: FunctionType
    arguments: dict[str, Any]
    """The values of all its parameters, as `Program.start` takes them."""


@dataclass(frozen=True, slots=True)
class Yield:
    """An async generator yields; what it is sent is the answer."""

    value: Any


class Suspended(NamedTuple):
    """The code reached an await or a yield: which, what it waits for, and with which variables it goes on."""

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
    """An answer that is an exception: the await raises it."""

    error: BaseException
