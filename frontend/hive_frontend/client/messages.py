"""The turns of a conversation."""

from __future__ import annotations

from typing import Literal, NamedTuple

Role = Literal["system", "user", "assistant"]


class Message(NamedTuple):
    """One turn of a dialogue."""

    role: Role
    content: str
