"""Figures that have a goal."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel


class Goal(BaseModel):
    """A figure, and what it should be."""

    what: str
    goal: float
    must_be: Literal["at least", "at most", "below"]
    value: float

    @property
    def met(self) -> bool:
        """Whether it is."""
        if self.must_be == "at least":
            return self.value >= self.goal
        return self.value < self.goal or (self.must_be == "at most" and self.value == self.goal)
