"""Selection by votes of another agent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hive_frontend.supervisors.base import SearchedAgent, show_setting
from hive_frontend.supervisors.searcher import lineage
from hive_frontend.supervisors.settings import Check
from hive_frontend.supervisors.state import Ask, State


@dataclass(frozen=True)
class Vote:
    """Rank states by how many of `votes` runs of `agent` prefer them.

        @agent
        async def judge(candidates: list[str]) -> int:
            listing = "\\n".join(f"{number}. {text}" for number, text in enumerate(candidates))
            best = await gen(f"{listing}\\nWhich is best?", regex="[0-9]")
            return int(best)

        TreeOfThoughts(branch_at="propose", select=Vote(judge, votes=5))

    The agent receives the texts of the candidates and returns the 0-based index of the best, as an integer or as
    its digits. Any other answer, or a dead end, is an abstention. Ties go by path.

    Yao et al.: Tree of Thoughts: Deliberate Problem Solving with Large Language Models, 2023, section 3,
    "Vote across states".
    """

    agent: SearchedAgent
    votes: int = 5
    text: Callable[[State], str] | None = None
    """Returns the text of a state that the agent reads; by default all answers of the model on the branch, one per
    line."""

    def __post_init__(self) -> None:
        check = Check(self)
        if not isinstance(self.agent, SearchedAgent):
            raise check.error(f"agent must be an @agent function, not {self.agent!r}")
        check.count("votes", self.votes)
        check.optional(check.function, "text", self.text)

    def __deepcopy__(self, memo: dict[int, Any]) -> Vote:
        """Return `self`: each run copies its supervisor, but all runs share the voting agent."""
        return self

    def __repr__(self) -> str:
        text = "" if self.text is None else f", text={show_setting(self.text)}"
        return f"Vote({self.agent!r}, votes={self.votes}{text})"

    def asks(self, candidates: Sequence[State], ballot: int) -> list[Ask]:
        """Return the questions of one ballot; `ballot` is its number in this search."""
        texts = [self._text(state) for state in candidates]
        return [Ask(self.agent, (list(texts),), (ballot, vote)) for vote in range(self.votes)]

    def ranking(self, candidates: Sequence[State], answers: Sequence[State]) -> list[State]:
        """Return the candidates, most votes first."""
        votes = Counter(_index(answer.value) for answer in answers)
        order = sorted(range(len(candidates)), key=lambda index: (-votes[index], candidates[index].path))
        return [candidates[index] for index in order]

    def _text(self, state: State) -> str:
        if self.text is not None:
            return self.text(state)
        return "\n".join(reply for each in lineage(state) for reply in each.replies)


def _index(value: Any) -> int | None:
    if isinstance(value, str) and value.strip().isdecimal():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
