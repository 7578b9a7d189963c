"""Fingerprints of values: hashes that do not depend on the process, on addresses of objects or on the order of sets.

Journals use them to compare requests and variables of agents with those of an earlier run. A fingerprint depends on the
value only: one object in two places has the same fingerprint as two equal objects. An object that contains something
that cannot be pickled, such as a lock or a socket, is an external handle; only its type counts.
"""

from __future__ import annotations

import dis
import functools
import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

from hive_frontend.operations.child import Child
from hive_frontend.operations.fork import closure_of
from hive_frontend.operations.transition import Shown
from hive_frontend.operations.workspace import Workspace

_PLAIN = (type(None), bool, int, float, complex, bytes, type(...), range)
_NAMED = (type, BuiltinFunctionType, WrapperDescriptorType, ModuleType)
_NOT_THERE = ["not there", ""]
_SHOWN = 160
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class _Unreadable(Exception):
    """Part of an object cannot be pickled."""


def fingerprint(value: Any, skipped: Iterable[Any] = ()) -> str:
    """Return the fingerprint of a value. The contents of objects in `skipped` do not count."""
    try:
        return _Reader(skipped).read(value)
    except RecursionError:
        return _hash("deep", type(value).__qualname__)


def shown(value: Any, skipped: Iterable[Any] = ()) -> Shown:
    """Return a short text of a value for messages, and the fingerprint, which is what is compared."""
    try:
        text = _ADDRESS.sub("", repr(str(value) if isinstance(value, str) else value))
    except Exception:
        text = f"<{type(value).__qualname__}>"
    if len(text) > _SHOWN:
        text = f"{text[: _SHOWN // 2]} ... {text[-_SHOWN // 4 :]} ({len(text)} characters)"
    return [text, fingerprint(value, skipped)[:16]]


def code_behind(called: Any) -> dict[str, Shown]:
    """Return the code of a callable, by name.

    This includes the functions and classes of the program that it uses, and the module constants that these read.
    """
    found: dict[str, Shown] = {}
    changing: set[str] = set()
    todo: list[FunctionType] = []

    def take(value: Any) -> None:
        if isinstance(value, functools.partial):
            take(value.func)
        elif isinstance(value, MethodType):
            take(value.__func__)
            take(type(value.__self__))
        elif not _is_own(getattr(value, "__module__", None)):
            return
        elif isinstance(value, type):
            for owner in value.__mro__:
                for each in vars(owner).values() if _is_own(owner.__module__) else ():
                    take(getattr(each, "__func__", each) if not isinstance(each, type) else None)
        elif isinstance(value, FunctionType):
            name = f"the code of {value.__qualname__}"
            if name not in found:
                found[name] = ["", _of_code(value.__code__, value.__doc__)[:16]]
                todo.append(value)
                defaults = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
                if constant := tuple(filter(_is_constant, defaults)):
                    found[f"the defaults of {value.__qualname__}"] = shown(constant)
        elif isinstance(wrapped := getattr(value, "__wrapped__", None), FunctionType):
            take(wrapped)

    def note(name: str, value: Any) -> None:
        if _is_constant(value):
            found[name] = shown(value)
        else:
            take(value)

    take(called if isinstance(called, (FunctionType, MethodType, functools.partial, type)) else type(called))
    while todo:
        function = todo.pop()
        for name, value in closure_of(function):
            note(name, value)
        for name, is_set in _global_names(function.__code__):
            if is_set:
                changing.add(name)
            note(name, function.__globals__.get(name))
    return {name: what for name, what in sorted(found.items()) if name not in changing}


def differences(then: Mapping[str, Shown], now: Mapping[str, Shown]) -> str:
    """Describe the differences between two requests; empty if there are none."""
    parts = []
    for name in dict.fromkeys([*then, *now]):
        (before, was), (after, now_is) = then.get(name, _NOT_THERE), now.get(name, _NOT_THERE)
        if was != now_is:
            if before == after:
                parts.append(f"{name} changed" if not before else f"{name} changed, within {before}")
            else:
                parts.append(f"{name} was {before or 'there'}, and is {after or 'new'}")
    return "; ".join(parts)


class _Reader:
    """Computes the fingerprint of one value; visits each object once."""

    def __init__(self, skipped: Iterable[Any]) -> None:
        self._known: dict[int, str] = {id(each): "skipped" for each in skipped}
        self._open: dict[int, int] = {}
        """Ids of the objects that contain the current one, with their depth."""
        self._kept: list[Any] = []
        """References to temporary objects, so that no other object gets the same id."""
        self._objects = 0
        """How many of the containing objects are neither lists nor other plain containers."""

    def read(self, value: Any) -> str:
        if isinstance(value, str):
            return _hash("str", str(value))
        if type(value) in _PLAIN:
            return _hash(type(value).__name__, repr(value))
        key = id(value)
        if key in self._known:
            return self._known[key]
        if key in self._open:
            return _hash("around", str(len(self._open) - self._open[key]))
        self._open[key] = len(self._open)
        self._kept.append(value)
        try:
            done = self._parts(value)
        finally:
            del self._open[key]
        self._known[key] = done
        return done

    def _parts(self, value: Any) -> str:
        kind = type(value).__qualname__
        if type(value) is dict:
            return _hash(kind, *(self.read(key) + self.read(item) for key, item in value.items()))
        if type(value) in (list, tuple, deque):
            return _hash(kind, *map(self.read, value))
        match value:
            case set() | frozenset():
                return _hash(kind, *sorted(map(self.read, value)))
            case FunctionType():
                return self._function(value)
            case MethodType():
                return _hash("method", value.__func__.__qualname__, self.read(value.__self__))
            case functools.partial():
                return _hash("partial", *map(self.read, (value.func, value.args, value.keywords)))
            case BuiltinFunctionType() if not isinstance(value.__self__, (ModuleType, type, type(None))):
                return _hash("method", value.__name__, self.read(value.__self__))
            case Workspace() | Child():
                return _hash(kind)
        if isinstance(value, _NAMED):
            name = getattr(value, "__qualname__", None) or getattr(value, "__name__", "")
            return _hash("name", getattr(value, "__module__", None) or "", str(name))
        try:
            return self._object(value)
        except _Unreadable:
            return _hash("handle", kind)

    def _function(self, function: FunctionType) -> str:
        held = [function.__defaults__, function.__kwdefaults__, *closure_of(function)]
        code = _of_code(function.__code__, function.__doc__)
        return _hash("function", function.__module__ or "", code, *map(self.read, held))

    def _object(self, value: Any) -> str:
        try:
            reduced = value.__reduce_ex__(4)
        except Exception:
            # A lock, a socket or a generator: the object that contains it is a handle, too.
            if self._objects:
                raise _Unreadable from None
            return _hash("handle", type(value).__qualname__)
        if isinstance(reduced, str):
            return _hash("name", reduced)
        make, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
        parts = [make, arguments, state, list(items or ()), list(pairs or ())]
        self._objects += 1
        try:
            return _hash("object", type(value).__qualname__, *map(self.read, parts))
        finally:
            self._objects -= 1


def _hash(kind: str, *parts: str) -> str:
    text = "\0".join([kind, *parts])
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _of_code(code: CodeType, doc: str | None = None) -> str:
    """Return the fingerprint of code. Layout and docstring do not count."""
    constants = [
        _of_code(each) if isinstance(each, CodeType) else fingerprint(each)
        for number, each in enumerate(code.co_consts)
        if number or each is None or each != doc
    ]
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_flags)
    return _hash("code", code.co_code.hex(), repr(names), *constants)


def _global_names(code: CodeType) -> Iterator[tuple[str, bool]]:
    """Yield the global names that code uses, including nested functions, and whether it assigns to them."""
    for each in dis.get_instructions(code):
        if each.opname in ("LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "STORE_DEREF"):
            yield each.argval, each.opname != "LOAD_GLOBAL"
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)


def _is_constant(value: Any) -> bool:
    """Whether a value is immutable data. Mutable data of a module does not count as part of its code."""
    if isinstance(value, (tuple, frozenset)):
        return all(map(_is_constant, value))
    return isinstance(value, (str, *_PLAIN)) and value is not None


def _is_own(module: str | None) -> bool:
    """Whether a module belongs to the program, not to Python or an installed package."""
    name = module or ""
    if name.partition(".")[0] in sys.stdlib_module_names and name != "__main__":
        return False
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return (
        "site-packages" not in file and "dist-packages" not in file and not name.startswith("hive_frontend")
    )
