"""Keeps alive the values of variables that an agent does not read again.

A temporary directory is deleted with the last reference to it, and a file is closed. Python keeps all variables of a
function until it ends, so a state also keeps variables that are no longer live. Branches share their values, because
no code reads them any more.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from hive_frontend.compiler.running.hidden import HELD
from hive_frontend.operation import Operation
from hive_frontend.operations.fork import ATOMS, Memo, Uncopyable


class Held(dict[str, Any]):
    """Kept values, by the names of their variables."""

    def __fork__(self, memo: Memo) -> Held:
        for name, value in self.items():
            if type(value) not in ATOMS and any(_finalizers(value)) and not hasattr(value, "__fork__"):
                # The branches may still use the resource through another name.
                raise Uncopyable(f"{name!r} is cleaned up once, for all branches")
        return self


def hold(held: Held | None, table: Mapping[str, Any], names: Sequence[str]) -> dict[str, Held]:
    """Return what a state keeps alive: the variables of these names, or what the previous state kept of them."""
    kept = {}
    for name in names:
        value = table.get(name)
        if type(value) not in ATOMS and not isinstance(value, Operation):
            kept[name] = value
        elif held is not None and name in held and name not in table:
            kept[name] = held[name]
    return {HELD: Held(kept)} if kept else {}


def _finalizers(value: Any) -> list[bool]:
    return [isinstance(each.__callback__, weakref.finalize) for each in weakref.getweakrefs(value)]
