"""What a run leaves behind: the JSON file, and the table for people."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel
from rich.table import Table

from bench.harness.command import HowMade

TRANSITIONS_PER_S = 5_000.0
BYTES_PER_STATE = 8 * 1024.0
FORK_US = 100.0
LANGGRAPH_RATIO = 10.0
ASYNCIO_RATIO = 3.0
CLIENT_RAW_RATIO = 5.0
CLIENT_RAW_RATIO_NEW_PROMPT = 7.0
CLIENT_AIOHTTP_RATIO = 1.5


class Spread(BaseModel):
    """The repeats of a measurement."""

    median: float
    lowest: float
    highest: float
    repeats: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of some numbers, at least one."""
        return cls(
            median=statistics.median(values), lowest=min(values), highest=max(values), repeats=len(values)
        )


class Arm(BaseModel):
    """One way to write the search."""

    name: str
    suspending: bool
    """Whether the model lets the event loop go round before it answers."""
    searches_per_repeat: int
    ms_per_search: Spread


class Memory(BaseModel):
    """What live states take, in bytes each; expanded states that they come from included."""

    states: int
    bytes_per_state: float
    """Of an agent that keeps next to nothing."""
    bytes_per_state_with_data: float
    """Of the same agent where it carries data: all that its states take."""
    data_bytes: float
    """What this data takes by itself, per copy."""


class Goal(BaseModel):
    """A figure, and what it should be."""

    key: str
    what: str
    goal: float
    must_be: Literal["at least", "below"]
    value: float

    @property
    def met(self) -> bool:
        """Whether it is."""
        return self.value >= self.goal if self.must_be == "at least" else self.value < self.goal


class Report(HowMade):
    """The JSON file. A figure is the median over the repeats; `spread` has the rest.

    `_suspending`: with a model that lets the event loop go round before it answers. Without it, Hive takes
    answers without a task of the event loop. Times are processor time.
    """

    event_loop: str
    transitions_per_s: float
    transitions_per_s_suspending: float
    bytes_per_state: float
    """Live states of an agent with data, less the data itself."""
    fork_us: float
    """A state with 100 messages in its dialogue."""
    langgraph_ratio: float
    """Time of LangGraph without a checkpointer over that of Hive."""
    langgraph_ratio_suspending: float
    langgraph_ratio_checkpointed: float
    """The same with LangGraph's checkpointer in memory."""
    langgraph_ratio_checkpointed_suspending: float
    asyncio_ratio: float
    """Time of Hive over that of the same search by hand on asyncio."""
    asyncio_ratio_suspending: float
    raw_ms: float
    """One model call over HTTP by hand on bare sockets, 20 in flight; the server is another process."""
    aiohttp_ms: float
    """The same by hand on aiohttp."""
    client_ms_per_call: float
    """The same as `gen` in a session, where each prompt was asked before."""
    client_ms_per_new_prompt: float
    """Where none was."""
    client_ms_per_merged_call: float
    """Where all 20 ask for the same, and so travel together."""
    client_raw_ratio: float
    client_raw_ratio_new_prompt: float
    client_aiohttp_ratio: float
    client_aiohttp_ratio_new_prompt: float
    calls_per_search: int
    spread: dict[str, Spread]
    memory: Memory
    arms: list[Arm]

    @property
    def goals(self) -> list[Goal]:
        """The figures that have one."""
        goals = [
            Goal(
                key="transitions_per_s",
                what="transitions per second, one core",
                goal=TRANSITIONS_PER_S,
                must_be="at least",
                value=self.transitions_per_s,
            ),
            Goal(
                key="bytes_per_state",
                what=f"bytes per live state ({self.memory.states:,} alive), without the user's data",
                goal=BYTES_PER_STATE,
                must_be="below",
                value=self.bytes_per_state,
            ),
            Goal(
                key="fork_us",
                what="fork of a state with 100 messages, µs",
                goal=FORK_US,
                must_be="below",
                value=self.fork_us,
            ),
        ]
        for suffix, model in (("", "answers at once"), ("_suspending", "suspends")):
            goals += [
                Goal(
                    key=f"langgraph_ratio{suffix}",
                    what=f"LangGraph's time over Hive's, model {model}",
                    goal=LANGGRAPH_RATIO,
                    must_be="at least",
                    value=getattr(self, f"langgraph_ratio{suffix}"),
                ),
                Goal(
                    key=f"asyncio_ratio{suffix}",
                    what=f"Hive's time over plain asyncio's, model {model}",
                    goal=ASYNCIO_RATIO,
                    must_be="below",
                    value=getattr(self, f"asyncio_ratio{suffix}"),
                ),
            ]
        for suffix, asked in (("", "known"), ("_new_prompt", "new")):
            goals += [
                Goal(
                    key=f"client_raw_ratio{suffix}",
                    what=f"a call's time over that on bare sockets, prompt {asked}",
                    goal=CLIENT_RAW_RATIO_NEW_PROMPT if suffix else CLIENT_RAW_RATIO,
                    must_be="below",
                    value=getattr(self, f"client_raw_ratio{suffix}"),
                ),
                Goal(
                    key=f"client_aiohttp_ratio{suffix}",
                    what=f"a call's time over that on aiohttp by hand, prompt {asked}",
                    goal=CLIENT_AIOHTTP_RATIO,
                    must_be="below",
                    value=getattr(self, f"client_aiohttp_ratio{suffix}"),
                ),
            ]
        return goals


def goals_table(report: Report) -> Table:
    """The figures against their goals."""
    table = Table(title="Hive's frontend")
    for column in ("figure", "median", "lowest .. highest", "goal", ""):
        table.add_column(column, justify="left" if column in ("figure", "") else "right")
    for goal in report.goals:
        spread = report.spread.get(goal.key)
        extent = f"{spread.lowest:,.4g} .. {spread.highest:,.4g}" if spread else ""
        met = "[green]met[/]" if goal.met else "[red]missed[/]"
        table.add_row(goal.what, f"{goal.value:,.4g}", extent, f"{goal.must_be} {goal.goal:,.4g}", met)
    return table


def client_table(report: Report) -> Table:
    """A call over HTTP, five times."""
    table = Table(title="One model call over HTTP, 20 in flight, milliseconds of this process")
    for column in ("call", "median", "lowest .. highest"):
        table.add_column(column, justify="left" if column == "call" else "right")
    for key, call in (
        ("raw_ms", "bare sockets"),
        ("aiohttp_ms", "aiohttp"),
        ("client_ms_per_call", "gen"),
        ("client_ms_per_new_prompt", "gen, prompt new"),
        ("client_ms_per_merged_call", "gen, all alike"),
    ):
        spread = report.spread[key]
        table.add_row(call, f"{spread.median:.3f}", f"{spread.lowest:.3f} .. {spread.highest:.3f}")
    return table


def arms_table(report: Report) -> Table:
    """The same search, three times."""
    table = Table(title=f"One search of {report.calls_per_search} model calls, milliseconds")
    for column in ("arm", "model", "median", "lowest .. highest"):
        table.add_column(column, justify="left" if column in ("arm", "model") else "right")
    for arm in report.arms:
        time = arm.ms_per_search
        model = "suspends" if arm.suspending else "answers at once"
        table.add_row(arm.name, model, f"{time.median:.2f}", f"{time.lowest:.2f} .. {time.highest:.2f}")
    return table
