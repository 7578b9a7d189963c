"""What happens when: requests and the order in which they start and finish."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

Tokens: TypeAlias = "array[int]"
"""Token ids, type code ``q`` as in SGLang."""
HOT_AGENTS = ("Patcher", "Viewer", "Decision")
"""The agents that programs call again and again, with prompts that grow."""


class Request(NamedTuple):
    """A request of an agent, or an anonymous one."""

    agent: str | None
    session: str | None
    prompt: Tokens
    output: Tokens

    @property
    def kept(self) -> Tokens:
        """What the cache may keep of it: the model never reads the last token that it writes."""
        return self.prompt + self.output[:-1]


Event = tuple[Literal["start"], int] | tuple[Literal["finish"], int] | tuple[Literal["end"], str]
"""A request starts or finishes (its index), or a session ends (its name)."""


@dataclass(frozen=True)
class Trace:
    """Requests, and what happens to them in order."""

    requests: Sequence[Request]
    events: Sequence[Event]
