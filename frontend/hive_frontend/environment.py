"""Forking: giving each branch its own copy of a state's variables."""

from __future__ import annotations

import copy
from typing import Any

from hive_frontend.compiler.program import Program, Suspended, is_bound_builtin
from hive_frontend.dialogue import Dialogue
from hive_frontend.errors import ForkError

Environment = tuple[dict[str, Any], list[Dialogue | None]]
"""The variables of a state and the dialogues of its pending calls."""


def move(suspended: Suspended) -> Environment:
    """The environment itself, for the only branch that goes on with it."""
    return suspended.variables, [call.dialogue for call in suspended.operation.calls]


def fork(program: Program, suspended: Suspended) -> Environment:
    """A copy of the environment for one branch of several.

    All variables are copied under one memo: two that were the same object are so in the copy. Objects that
    global or enclosing names of the agent refer to stay what they are.
    """
    variables, dialogues = move(suspended)
    memo = program.outer_objects()
    copied = {}
    for name, value in variables.items():
        try:
            if is_bound_builtin(value):
                raise TypeError("it is a method of an object, and would act on the object of another branch")
            copied[name] = copy.deepcopy(value, memo)
        except Exception as error:
            raise ForkError(_explain(program, suspended, name, value, error)) from error
    return copied, copy.deepcopy(dialogues, memo)


def _explain(program: Program, suspended: Suspended, name: str, value: Any, error: Exception) -> str:
    kind = type(value)
    what = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    point = suspended.point
    if name in program.hidden:
        fix = "loop over a list: `for ... in list(...)`"
    else:
        fix = f"make it before the run and let the agent use it as a global, or del {name} before the await"
    return (
        f"state {point.name!r} in line {point.line} of agent {program.graph.agent!r} cannot be forked: "
        f"{program.describe(name)}, of type {what}, cannot be copied ({error}); fix: {fix}"
    )
