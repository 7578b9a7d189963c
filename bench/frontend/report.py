"""What a run leaves behind: the JSON file, and the table for people."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from pydantic import BaseModel
from rich.table import Table

from bench.harness.command import HowMade
from bench.harness.goals import Goal
from bench.harness.tables import met, table

TRANSITIONS_PER_S = 5_000.0
BYTES_PER_STATE = 8 * 1024.0
FORK_US = 100.0
LANGGRAPH_RATIO = 10.0
ASYNCIO_RATIO = 3.0
CLIENT_RAW_RATIO = 5.0
CLIENT_RAW_RATIO_NEW_PROMPT = 7.0
CLIENT_AIOHTTP_RATIO = 1.5
AT_LEAST = ("transitions", "langgraph")
"""Beginnings of the names of figures that are to be large; the others are to be small."""


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

    @classmethod
    def of_ratio(cls, slower: Sequence[float], faster: Sequence[float]) -> Spread:
        """The spread of one measurement over another, repeat by repeat."""
        return cls.of([one / other for one, other in zip(slower, faster, strict=True)])


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


class KeyedGoal(Goal):
    """The goal of a figure of the report."""

    key: str


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
    """The same as `gen` in a session, each call in a request of its own, where each prompt was asked before."""
    client_ms_per_new_prompt: float
    """Where none was."""
    client_ms_per_merged_call: float
    """Where all 20 have the same prompt, and are merged."""
    client_ms_per_listed_call: float
    """Where all 20 have new prompts, and those of one turn of the event loop travel in one request."""
    client_raw_ratio: float
    client_raw_ratio_new_prompt: float
    client_aiohttp_ratio: float
    client_aiohttp_ratio_new_prompt: float
    calls_per_search: int
    spread: dict[str, Spread]
    memory: Memory
    arms: list[Arm]

    @property
    def goals(self) -> list[KeyedGoal]:
        states = f"bytes per live state ({self.memory.states:,} alive), without the user's data"
        found = [
            ("transitions_per_s", "transitions per second, one core", TRANSITIONS_PER_S),
            ("bytes_per_state", states, BYTES_PER_STATE),
            ("fork_us", "fork of a state with 100 messages, µs", FORK_US),
        ]
        for suffix, model in (("", "answers at once"), ("_suspending", "suspends")):
            found += [
                (f"langgraph_ratio{suffix}", f"LangGraph's time over Hive's, model {model}", LANGGRAPH_RATIO),
                (f"asyncio_ratio{suffix}", f"Hive's time over plain asyncio's, model {model}", ASYNCIO_RATIO),
            ]
        for suffix, asked, raw in (
            ("", "known", CLIENT_RAW_RATIO),
            ("_new_prompt", "new", CLIENT_RAW_RATIO_NEW_PROMPT),
        ):
            on_sockets = f"a call's time over that on bare sockets, prompt {asked}"
            by_hand = f"a call's time over that on aiohttp by hand, prompt {asked}"
            found += [
                (f"client_raw_ratio{suffix}", on_sockets, raw),
                (f"client_aiohttp_ratio{suffix}", by_hand, CLIENT_AIOHTTP_RATIO),
            ]
        return [
            KeyedGoal(
                key=key,
                what=what,
                goal=goal,
                must_be="at least" if key.startswith(AT_LEAST) else "below",
                value=getattr(self, key),
            )
            for key, what, goal in found
        ]


def goals_table(report: Report) -> Table:
    cells = (
        (
            *(goal.what, f"{goal.value:,.4g}", _extent(report.spread.get(goal.key), ",.4g")),
            *(f"{goal.must_be} {goal.goal:,.4g}", met(goal.met)),
        )
        for goal in report.goals
    )
    headings = ("figure", "median", "lowest .. highest", "goal", "")
    return table("Hive's frontend", headings, cells, left=("figure", ""))


def client_table(report: Report) -> Table:
    """A call over HTTP, in six ways."""
    calls = {
        "raw_ms": "bare sockets",
        "aiohttp_ms": "aiohttp",
        "client_ms_per_call": "gen",
        "client_ms_per_new_prompt": "gen, prompt new",
        "client_ms_per_merged_call": "gen, merged, one prompt",
        "client_ms_per_listed_call": "gen, merged, new prompts",
    }
    cells = (
        (call, f"{report.spread[key].median:.3f}", _extent(report.spread[key], ".3f"))
        for key, call in calls.items()
    )
    title = "One model call over HTTP, 20 in flight, milliseconds of this process"
    return table(title, ("call", "median", "lowest .. highest"), cells)


def arms_table(report: Report) -> Table:
    """The same search, three times."""
    cells = (
        (
            *(arm.name, "suspends" if arm.suspending else "answers at once"),
            *(f"{arm.ms_per_search.median:.2f}", _extent(arm.ms_per_search, ".2f")),
        )
        for arm in report.arms
    )
    title = f"One search of {report.calls_per_search} model calls, milliseconds"
    return table(title, ("arm", "model", "median", "lowest .. highest"), cells, left=2)


def _extent(spread: Spread | None, form: str) -> str:
    return "" if spread is None else f"{spread.lowest:{form}} .. {spread.highest:{form}}"
