"""Validation of the settings of supervisors, and the error messages."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hive_frontend.compiler.flow_graph import FlowGraph
from hive_frontend.errors import SupervisorError

T = TypeVar("T")


class Check:
    """Checks the settings of one supervisor.

    Every method returns the setting in its final form, or raises a `SupervisorError` that names the supervisor,
    the setting and the rule.
    """

    def __init__(self, owner: object) -> None:
        self._owner = type(owner).__name__

    def error(self, message: str) -> SupervisorError:
        """Return an error about these settings, for the caller to raise."""
        return SupervisorError(f"{self._owner}: {message}")

    def optional(self, rule: Callable[[str, Any], T], setting: str, value: Any) -> T | None:
        """Check None, or a value that satisfies `rule`."""
        return None if value is None else rule(setting, value)

    def count(self, setting: str, value: Any, least: int = 1) -> int:
        """Check an integer of at least `least`."""
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.error(f"{setting} must be an integer of at least {least}, not {value!r}")
        return value

    def number(self, setting: str, value: Any, least: float = -math.inf) -> float:
        """Check a finite number of at least `least`."""
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(f"{setting} must be a number, not {value!r}")
        if not math.isfinite(value) or value < least:
            at_least = "" if least == -math.inf else f" of at least {least:g}"
            raise self.error(f"{setting} must be a finite number{at_least}, not {value!r}")
        return value

    def range(self, setting: str, value: Any) -> tuple[float, float]:
        """Check a pair of two finite numbers, the lower one first."""
        if not isinstance(value, tuple) or len(value) != 2:
            raise self.error(f"{setting} must be a pair (lowest, highest), not {value!r}")
        lowest, highest = (self.number(setting, each) for each in value)
        if lowest >= highest:
            raise self.error(f"{setting} must be a pair (lowest, highest), not {value!r}")
        return lowest, highest

    def flag(self, setting: str, value: Any) -> bool:
        """Check True or False."""
        if not isinstance(value, bool):
            raise self.error(f"{setting} must be True or False, not {value!r}")
        return value

    def choice(self, setting: str, value: T, options: tuple[T, ...]) -> T:
        """Check one of `options`."""
        if value not in options:
            raise self.error(f"{setting} must be one of {', '.join(map(repr, options))}, not {value!r}")
        return value

    def function(self, setting: str, value: T) -> T:
        """Check a callable."""
        if not callable(value):
            raise self.error(f"{setting} must be a function of a state, not {value!r}")
        return value

    def name(self, setting: str, value: Any) -> str:
        """Check the name of a state."""
        if not isinstance(value, str) or not value:
            raise self.error(f"{setting} must be the name of a state, not {value!r}")
        return value

    def names(self, setting: str, value: Any) -> tuple[str, ...]:
        """Check one or more names of states; return them as a tuple."""
        if not isinstance(value, (str, Sequence)):
            raise self.error(f"{setting} must be the name of a state or a list of names, not {value!r}")
        names = (value,) if isinstance(value, str) else value
        if not names:
            raise self.error(f"{setting} is empty; give the name of at least one state to branch at")
        return tuple(self.name(setting, name) for name in names)

    def known(self, graph: FlowGraph, setting: str, *names: str) -> None:
        """Check that the agent has states of these names. Skipped if some of its states are known only at run time.

        Raises:
            SupervisorError: if the agent has no state of such a name; lists the names that it has.
        """
        known = graph.state_names
        for name in names:
            if name not in known and not graph.open:
                choice = f"its states are {', '.join(known)}" if known else "it has no states"
                raise self.error(
                    f"{setting}={name!r} is not a state of agent {graph.agent!r}; {choice} "
                    '(name a state with gen(..., name="..."))'
                )
