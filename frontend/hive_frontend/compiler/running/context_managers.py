"""The methods of a context manager, found as the `with` statement finds them: on the type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_MISSING = object()


def bound_enter(manager: Any) -> Callable[[], Any]:
    """Its `__enter__`; `TypeError` if it has not both methods."""
    enter = _method(manager, "__enter__")
    protocol = f"{type(manager).__name__!r} object does not support the context manager protocol"
    if enter is _MISSING:
        raise TypeError(protocol)
    if _method(manager, "__exit__") is _MISSING:
        raise TypeError(f"{protocol} (missed __exit__ method)")
    return enter  # type: ignore[no-any-return]


def bound_exit(manager: Any) -> Callable[..., Any]:
    """Its `__exit__`."""
    return _method(manager, "__exit__")  # type: ignore[no-any-return]


def _method(manager: Any, name: str) -> Any:
    kind = type(manager)
    for base in kind.__mro__:
        if name in vars(base):
            found = vars(base)[name]
            return found.__get__(manager, kind) if hasattr(type(found), "__get__") else found
    return _MISSING
