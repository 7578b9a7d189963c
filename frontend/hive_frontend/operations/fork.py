"""Forking: each branch of a search gets its own copy of an agent's data.

Like `copy.deepcopy`, with four differences: classes can define `__fork__`; closures are copied with the variables
that they refer to; exceptions and modules are shared; and objects that cannot be copied soundly, such as a bound method
of a list, are refused. Hive has its own copier because `copy.deepcopy` has no hook for `__fork__`, and for speed: every
firing of a state forks.
"""

from __future__ import annotations

import copyreg
import operator
import sys
import types
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Annotated, Any, NoReturn, TypeVar

from pydantic import BaseModel

from hive_frontend.client.cached_message import CachedMessage
from hive_frontend.client.reply import Reply
from hive_frontend.errors import HiveError

T = TypeVar("T")
Memo = dict[int, Any]


class _SharedMark:
    def __repr__(self) -> str:
        return "shared between branches"


Shared = Annotated[T, _SharedMark()]
"""Marks a variable or parameter of an agent that all branches share: `db: Shared[Database] = connect()`.

The object is not copied when a state forks, also where other objects refer to it. Branches see each other's changes to
it, and it must be safe for concurrent use.
"""


_pydantic_deepcopy = BaseModel.__deepcopy__


class Uncopyable(HiveError):
    """An object cannot be copied for another branch."""


ATOMS: frozenset[type] = frozenset(
    {
        type(None),
        type(Ellipsis),
        type(NotImplemented),
        bool,
        int,
        float,
        complex,
        str,
        bytes,
        range,
        type,
        Reply,
        CachedMessage,
        property,
        weakref.ref,
        types.CodeType,
        types.ModuleType,
        types.WrapperDescriptorType,
        types.MethodDescriptorType,
        types.GenericAlias,
    }
)
"""Types whose instances all branches share."""


def copy(value: T, memo: Memo) -> T:
    """Return a copy of `value` for another branch; `memo` maps the ids of objects copied so far to the copies.

    The memo has the format of `copy.deepcopy`'s, so that it can be passed to `__deepcopy__` methods. Raises
    `Uncopyable`, or the errors of the value's own methods, if it cannot be copied.
    """
    kind = type(value)
    if kind in ATOMS:
        return value
    key = id(value)
    if key in memo:
        found: T = memo[key]
        return found
    copier = _COPIERS.get(kind)
    if copier is not None:
        return copier(value, memo)  # type: ignore[no-any-return]
    made: Any
    if (fork := getattr(kind, "__fork__", None)) is not None:
        made = fork(value, memo)
    elif isinstance(value, (type, BaseException)):
        made = value
    # The default `__deepcopy__` of pydantic models would ignore `__fork__` of their fields.
    elif (deepcopy := getattr(kind, "__deepcopy__", None)) is not None and deepcopy is not _pydantic_deepcopy:
        made = deepcopy(value, memo)
    else:
        return _rebuild(value, memo)  # type: ignore[no-any-return]
    if made is not value:
        memo[key] = made
    return made  # type: ignore[no-any-return]


def _rebuild(value: Any, memo: Memo) -> Any:
    """Copy an object by the pickle protocol, forking its parts."""
    kind = type(value)
    reduce = copyreg.dispatch_table.get(kind)
    reduced = reduce(value) if reduce is not None else value.__reduce_ex__(4)
    if isinstance(reduced, str):
        return value
    # The parts may be temporary objects. The memo keeps them alive, so that their ids are not reused.
    memo.setdefault(id(memo), []).append(reduced)
    make, arguments, state, items, pairs, *rest = (*reduced, None, None, None, None)[:6]
    made = make(*[copy(argument, memo) for argument in arguments])
    memo[id(value)] = made
    if state is not None:
        state = copy(state, memo)
        if rest and rest[0] is not None:
            rest[0](made, state)
        elif hasattr(made, "__setstate__"):
            made.__setstate__(state)
        else:
            attributes, slots = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
            if attributes:
                made.__dict__.update(attributes)
            for name, attribute in (slots or {}).items():
                setattr(made, name, attribute)
    for item in items or ():
        made.append(copy(item, memo))
    for name, item in pairs or ():
        made[copy(name, memo)] = copy(item, memo)
    return made


def _list(value: list[Any], memo: Memo) -> list[Any]:
    made: list[Any] = []
    memo[id(value)] = made
    made.extend([item if type(item) in ATOMS else copy(item, memo) for item in value])
    return made


def _dict(value: dict[Any, Any], memo: Memo) -> dict[Any, Any]:
    made: dict[Any, Any] = {}
    memo[id(value)] = made
    for key, item in value.items():
        made[key if type(key) in ATOMS else copy(key, memo)] = (
            item if type(item) in ATOMS else copy(item, memo)
        )
    return made


def _defaultdict(value: defaultdict[Any, Any], memo: Memo) -> defaultdict[Any, Any]:
    made: defaultdict[Any, Any] = defaultdict()
    memo[id(value)] = made
    made.default_factory = copy(value.default_factory, memo)
    made.update([(copy(key, memo), copy(item, memo)) for key, item in value.items()])
    return made


def _set(value: set[Any], memo: Memo) -> set[Any]:
    made: set[Any] = set()
    memo[id(value)] = made
    made.update([copy(item, memo) for item in value])
    return made


def _tuple(value: tuple[Any, ...], memo: Memo) -> tuple[Any, ...]:
    made = tuple([item if type(item) in ATOMS else copy(item, memo) for item in value])
    # A tuple can contain itself through a list; copying that list has then put the tuple's copy into the memo.
    if id(value) in memo:
        found: tuple[Any, ...] = memo[id(value)]
        return found
    # A tuple whose items are all shared is shared itself.
    if all(one is other for one, other in zip(made, value, strict=True)):
        made = value
    memo[id(value)] = made
    return made


def _deque(value: deque[Any], memo: Memo) -> deque[Any]:
    made: deque[Any] = deque(maxlen=value.maxlen)
    memo[id(value)] = made
    made.extend([copy(item, memo) for item in value])
    return made


def _method(value: types.MethodType, memo: Memo) -> types.MethodType:
    return types.MethodType(value.__func__, copy(value.__self__, memo))


def is_definition(function: types.FunctionType) -> bool:
    """Return whether a function is defined in a module or class, rather than created within another function."""
    *around, name = function.__qualname__.split(".")
    if "<locals>" in around:
        return around[-1] != "<locals>"
    found: Any = sys.modules.get(function.__module__)
    for each in (*around, name):
        found = getattr(found, each, None)
    return found is function


def closure_of(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the variables of enclosing functions that a function uses, by name."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # The variable may have no value yet.
            yield name, cell.cell_contents


def _function(value: types.FunctionType, memo: Memo) -> types.FunctionType:
    """Copy a closure together with the variables that it refers to."""
    if not (value.__closure__ or value.__defaults__ or value.__kwdefaults__) or is_definition(value):
        return value
    defaults, keywords = value.__defaults__, value.__kwdefaults__ or {}
    of_keywords = {name: copy(default, memo) for name, default in keywords.items()}
    made = _closure(value, copy(defaults, memo), of_keywords, memo)
    same = made.__defaults__ is defaults and all(keywords[name] is of_keywords[name] for name in keywords)
    if same and all(map(operator.is_, made.__closure__ or (), value.__closure__ or ())):
        # Everything that it refers to is shared, so the function is shared, too.
        memo[id(value)] = value
        return value
    return made


def _closure(
    value: types.FunctionType, defaults: tuple[Any, ...] | None, keywords: dict[str, Any], memo: Memo
) -> types.FunctionType:
    if id(value) in memo:  # One of its defaults refers to the function.
        found: types.FunctionType = memo[id(value)]
        return found
    closure = value.__closure__ or ()
    new = [cell for cell in closure if id(cell) not in memo]
    memo.update((id(cell), types.CellType()) for cell in new)
    cells = tuple(memo[id(cell)] for cell in closure)
    made = types.FunctionType(value.__code__, value.__globals__, value.__name__, defaults, cells or None)
    memo[id(value)] = made
    for attribute in ("__module__", "__qualname__", "__doc__", "__annotations__"):
        setattr(made, attribute, getattr(value, attribute))
    made.__kwdefaults__ = keywords or None
    for name, cell in zip(value.__code__.co_freevars, closure, strict=True):
        if any(cell is each for each in new):
            try:
                _fill(memo[id(cell)], cell, memo)
            except RecursionError:
                raise
            except Exception as error:
                raise Uncopyable(f"variable {name!r} of {value.__qualname__}: {error}") from error
    made.__dict__.update(copy(value.__dict__, memo))
    return made


def _cell(value: types.CellType, memo: Memo) -> types.CellType:
    made = memo[id(value)] = types.CellType()
    _fill(made, value, memo)
    return made


def _fill(twin: types.CellType, cell: types.CellType, memo: Memo) -> None:
    try:
        contents = cell.cell_contents
    except ValueError:
        return  # The variable has no value yet.
    twin.cell_contents = copy(contents, memo)


def _finalizer(value: weakref.finalize[Any, Any], memo: Memo) -> NoReturn:
    raise Uncopyable("its finalizer runs once, for all branches; for a directory per branch use a Workspace")


def _builtin(value: types.BuiltinFunctionType, memo: Memo) -> types.BuiltinFunctionType:
    if isinstance(value.__self__, (types.ModuleType, type, type(None))):
        return value
    raise Uncopyable("it is a bound method of an object, and would act on the object of another branch")


_COPIERS: dict[type, Callable[[Any, Memo], Any]] = {
    list: _list,
    dict: _dict,
    set: _set,
    tuple: _tuple,
    deque: _deque,
    defaultdict: _defaultdict,
    weakref.finalize: _finalizer,
    types.FunctionType: _function,
    types.CellType: _cell,
    types.MethodType: _method,
    types.BuiltinFunctionType: _builtin,
    types.MethodWrapperType: _builtin,
}
