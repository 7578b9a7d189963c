"""Selection by the votes of another agent."""

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
    """States are ranked by how many of `votes` runs of `agent` prefer them.

        @agent
        async def judge(candidates: list[str]) -> int:
            listing = "\\n".join(f"{number}. {text}" for number, text in enumerate(candidates))
            best = await gen(f"{listing}\\nWhich is best?", regex="[0-9]")
            return int(best)

        TreeOfThoughts(branch_at="propose", select=Vote(judge, votes=5))

    The agent gets the texts of the candidates and returns the index of the best, counted from 0, as an integer
    or its digits. Anything else, a dead end included, is an abstention. Ties go by path.

    Yao et al.: Tree of Thoughts: Deliberate Problem Solving with Large Language Models, 2023, section 3,
    "Vote across states".
    """

    agent: SearchedAgent
    votes: int = 5
    text: Callable[[State], str] | None = None
    """What the agent gets to read of a state; by default all that the model answered on the way there, one
    answer a line."""

    def __post_init__(self) -> None:
        check = Check(self)
        if not isinstance(self.agent, SearchedAgent):
            raise check.error(f"agent must be an @agent function, not {self.agent!r}")
        check.count("votes", self.votes)
        check.optional(check.function, "text", self.text)

    def __deepcopy__(self, memo: dict[int, Any]) -> Vote:
        """Runs copy their supervisor, but the agent that votes is the same in all of them."""
        return self

    def __repr__(self) -> str:
        text = "" if self.text is None else f", text={show_setting(self.text)}"
        return f"Vote({self.agent!r}, votes={self.votes}{text})"

    def asks(self, candidates: Sequence[State], ballot: int) -> list[Ask]:
        """The questions of one ballot, which has this number among the ballots of the search."""
        texts = [self._text(state) for state in candidates]
        return [Ask(self.agent, (list(texts),), (ballot, vote)) for vote in range(self.votes)]

    def ranking(self, candidates: Sequence[State], answers: Sequence[State]) -> list[State]:
        """The candidates, most votes first."""
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
