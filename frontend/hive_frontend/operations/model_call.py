"""Model calls as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from hive_frontend.client.contract import Sampling
from hive_frontend.client.dialogue import Dialogue
from hive_frontend.client.messages import Message
from hive_frontend.client.tools import Tools
from hive_frontend.operation import Call, Operation

T = TypeVar("T")


@dataclass(slots=True, eq=False, repr=False)
class ModelCall(Operation[T]):
    """One model call. It has everything that the request needs when it is created."""

    messages: tuple[Message, ...]
    prompt: str | None
    sampling: Sampling
    name: str | None = None
    agent: str | None = None
    sample: int | None = None
    dialogue: Dialogue | None = None
    """The dialogue that takes the answer as its next turn."""
    tools: Tools | None = None
    """The tools that the model may call."""

    @property
    def calls(self) -> tuple[Call, ...]:
        return (self,)

    @property
    def shown(self) -> str:
        """The prompt of the call, for people to read."""
        if self.prompt is not None:
            return self.prompt
        return "\n\n".join(message.shown for message in self.messages)


def checked_sample(sample: int | None) -> int | None:
    """Return `sample` if it is a valid sample number; raise `ValueError` otherwise."""
    if sample is not None and not 0 <= sample < 2**31:
        raise ValueError(f"sample must be from 0 to 2**31 - 1, not {sample!r}")
    return sample
