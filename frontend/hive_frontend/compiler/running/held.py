"""Variables that an agent does not read again, but whose values still do something by being there.

A temporary directory vanishes with the last reference to it, a file closes. Python keeps all variables of a
function until it ends, so a state keeps those that its code has done with, beside those that it carries.
Branches share them, as nothing reads them any more.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from hive_frontend.compiler.running.hidden import HELD
from hive_frontend.operation import Operation
from hive_frontend.operations.fork import ATOMS, Memo, Uncopyable


class Held(dict[str, Any]):
    """Such values, by the names of their variables."""

    def __fork__(self, memo: Memo) -> Held:
        for name, value in self.items():
            if type(value) not in ATOMS and any(_finalizers(value)) and not hasattr(value, "__fork__"):
                # The branches may go on to use the resource by another name.
                raise Uncopyable(f"{name!r} is cleaned up once, for all branches")
        return self


def hold(held: Held | None, table: Mapping[str, Any], names: Sequence[str]) -> dict[str, Held]:
    """What a state holds: the variables of these names, or what the state before held of them."""
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
