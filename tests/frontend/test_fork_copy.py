"""The copier: what `copy.deepcopy` does, plus what a search needs."""

from __future__ import annotations

import copy
import itertools
import math
import re
import threading
from collections import OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hive_frontend import Dialogue
from hive_frontend.operations import fork
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel


class Colour(Enum):
    RED = 1


@dataclass
class Point:
    x: int
    near: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Frozen:
    items: list[int]


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self) -> None:
        self.a = [1]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Slotted) and self.a == other.a

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Slotted({self.a})"


class Record(BaseModel):
    name: str
    tags: list[str]


class Pool:
    """A resource: forks get a member of their own."""

    def __init__(self) -> None:
        self.members = itertools.count(1)
        self.number = 0

    def __fork__(self, memo: dict[int, Any]) -> Pool:
        twin = Pool.__new__(Pool)
        twin.members = self.members
        twin.number = next(self.members)
        return twin


VALUES: list[Any] = [
    [1, [2, 3], (4, [5])],
    {"a": [1], (1, 2): {"b"}},
    {1, 2, frozenset({3})},
    OrderedDict(a=[1], b=[2]),
    defaultdict(list, a=[1]),
    deque([[1], 2], maxlen=4),
    bytearray(b"ab"),
    Point(1, [Point(2)]),
    Frozen([1, 2]),
    Slotted(),
    Record(name="r", tags=["x"]),
    Dialogue(system="s").user("u"),
    Decimal("1.5"),
    Colour.RED,
    Path("a/b"),
    re.compile("a+"),
    math.nan,
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_copies_equal_those_of_deepcopy(value: Any) -> None:
    forked = fork.copy(value, {})
    assert type(forked) is type(value)
    assert repr(forked) == repr(copy.deepcopy(value))
    if value == value:
        assert forked == value


nested = st.recursive(
    st.integers() | st.text(max_size=3) | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3)
    | st.tuples(inner, inner),
    max_leaves=12,
)  # fmt: skip


@given(nested)
def test_nothing_that_can_change_is_shared(value: Any) -> None:
    forked = fork.copy(value, {})
    assert forked == value
    assert not _containers(value) & _containers(forked)


def _containers(value: Any) -> set[int]:
    """The ids of all lists and dicts in a value."""
    found: set[int] = set()
    if isinstance(value, (list, dict)):
        found.add(id(value))
    if isinstance(value, (list, tuple, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            found |= _containers(item)
    return found


def test_what_was_one_object_is_one_in_the_copy() -> None:
    shared = [1]
    loop: list[Any] = [shared, {"again": shared}]
    loop.append((loop, shared))
    first, second, (again, third) = fork.copy(loop, {})
    assert first is second["again"] is third
    assert first is not shared
    assert again[0] is first


def test_constants_stay_the_same_object() -> None:
    value = (1, ("a", None))
    assert fork.copy(value, {}) is value


def test_classes_say_what_a_fork_of_theirs_is_wherever_they_stand() -> None:
    pool = Pool()
    first = fork.copy({"deep": [Point(1, [pool])], "same": pool}, {})
    assert first["deep"][0].near[0] is first["same"]
    assert first["same"].number == 1
    assert fork.copy([pool], {})[0].number == 2


def test_exceptions_and_modules_are_shared() -> None:
    error = ValueError([1])
    assert fork.copy([error, math], {}) == [error, math]


def test_methods_belong_to_the_copied_object() -> None:
    point = Point(1)
    copied, method, call = fork.copy([point, point.__eq__, partial(point.__eq__, None)], {})
    assert method.__self__ is copied
    assert call.func.__self__ is copied


@pytest.mark.parametrize("value", [[].append, {}.get, (x for x in "a"), threading.Lock()])
def test_what_cannot_be_copied_soundly_is_refused(value: Any) -> None:
    with pytest.raises(Exception, match=r"another branch|cannot pickle"):
        fork.copy([value], {})


def test_iterators_keep_their_position() -> None:
    items = [1, 2, 3]
    iterator = iter(items)
    next(iterator)
    copied = fork.copy(iterator, {})
    items.append(4)
    assert list(copied) == [2, 3]
    assert list(iterator) == [2, 3, 4]


def test_temporary_parts_do_not_confuse_the_memo() -> None:
    # Each of these is copied by way of temporary tuples and dicts, whose ids come again and again.
    values = [Slotted() for _ in range(200)]
    for number, value in enumerate(values):
        value.a = [number]
    assert [value.a for value in fork.copy(values, {})] == [[number] for number in range(200)]
