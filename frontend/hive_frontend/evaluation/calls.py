"""Calls of programs and scorers: agents under their supervisors, and ordinary functions in a session."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hive_frontend.agents import Agent
from hive_frontend.client.contract import Client
from hive_frontend.evaluation.report import total_of
from hive_frontend.operations.budget import Budget
from hive_frontend.operations.transition import Shown
from hive_frontend.runtime import arun
from hive_frontend.search.fingerprint import code_behind, shown
from hive_frontend.search.run_result import RunResult
from hive_frontend.search.session import Session
from hive_frontend.search.totals import Totals
from hive_frontend.supervisors.base import Supervisor

Function = Agent[..., Any] | Callable[..., Any]


@dataclass(frozen=True)
class Call:
    """A call of a program or a scorer, with the settings of its run."""

    function: Function
    model: Client | None
    seed: int
    supervisor: Supervisor | None = None
    budget: Budget | None = None

    async def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, Totals]:
        """Return the result, a `RunResult` for an agent, and what it used."""
        if isinstance(self.function, Agent):
            result: Any = await arun(
                self.function,
                *args,
                model=self.model,
                seed=self.seed,
                supervisor=self.supervisor,
                budget=self.budget,
                **kwargs,
            )
            return result, result.totals
        session = Session(self.model, seed=self.seed, budget=self.budget)
        async with session:
            result = self.function(*args, **kwargs)
            if isinstance(result, Awaitable):
                result = await result
        if not isinstance(result, RunResult):
            return result, session.totals
        return result, total_of([session.totals, result.totals], wall_s=session.totals.wall_s)


def arguments_of(function: Function, item: Any, seed: int) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments with which a program is called for an item.

    A dict gives each parameter the field of its name; other fields, such as the right answer, are not passed. Any other
    item is the first argument. A function that is no agent also gets the seed of the case if it has a parameter `seed`.

    Raises:
        TypeError: if a parameter has neither a field nor a default.
    """
    if is_agent := isinstance(function, Agent):
        parameters = function.parameters
    else:
        parameters = [*inspect.signature(function).parameters.values()]
    if not isinstance(item, Mapping):
        takes_seed = not is_agent and "seed" in [parameter.name for parameter in parameters[1:]]
        return [item], {"seed": seed} if takes_seed else {}
    fields = dict(item) if is_agent else {"seed": seed, **item}
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for parameter in parameters:
        name = parameter.name
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if name not in fields and parameter.default is parameter.empty:
            raise TypeError(
                f"{name_of(function)} has a parameter {name!r}, and an item has no such field; it has "
                f"{', '.join(map(repr, item))}. A dict gives each parameter the field of its name"
            )
        value = fields.get(name, parameter.default)
        # By position, because a keyword may also be one of `run`, such as `model`.
        if parameter.kind is parameter.KEYWORD_ONLY:
            kwargs[name] = value
        else:
            args.append(value)
    return args, kwargs


def name_of(function: Function) -> str:
    """Return the name of a program or a scorer; without one, that of its type."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def code_of(function: Function) -> dict[str, Shown]:
    """Return what a resumed evaluation compares of a program or a scorer: its code, and what a `partial` binds."""
    found: dict[str, Shown] = {}
    while isinstance(function, functools.partial):
        bound = [*enumerate(function.args), *function.keywords.items()]
        found |= {f"the argument {name}": shown(value) for name, value in bound}
        function = function.func
    return found | code_behind(inspect.unwrap(function))
