"""The errors that the frontend raises. Each message names the problem and the fix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


class HiveError(Exception):
    """Base of all errors raised by the frontend."""


class NoModelError(HiveError):
    """No language model was given."""


class ForkError(HiveError):
    """A state could not be copied, so it cannot fire more than once."""


class SupervisorError(HiveError):
    """A supervisor is misconfigured, or made an invalid decision."""


class ModelError(HiveError):
    """The model server refused a request, failed, or sent an invalid answer.

    `status` is the HTTP status; None if there was none.
    """

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class StepsExceeded(ModelError):
    """A model called tools in every step that `act` allows, and gave no final answer."""


class ToolTimeout(HiveError):
    """A tool exceeded its `timeout`."""


class ChildEnded(HiveError):
    """`next` or `resume` was called on a spawned agent that has ended."""


class JournalError(HiveError):
    """A checkpoint or recording does not belong to this run, is damaged, or lacks an answer."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One construct that the compiler does not support, and how to fix it."""

    filename: str
    line: int
    column: int
    """1-based, in characters."""
    source: str
    """The user's source line."""
    what: str
    fix: str

    def __str__(self) -> str:
        text = self.source.rstrip("\n").expandtabs(1)
        body = text.lstrip()
        caret = " " * (self.column - 1 - (len(text) - len(body))) + "^"
        return (
            f"{self.filename}:{self.line}:{self.column}: {self.what}\n"
            f"    {body}\n"
            f"    {caret}\n"
            f"    fix: {self.fix}"
        )


class CompileError(HiveError):
    """An agent uses constructs that the compiler does not support. `problems` lists all of them."""

    def __init__(self, agent: str, problems: Sequence[Problem]) -> None:
        self.agent = agent
        self.problems = tuple(problems)
        count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        listing = "\n\n".join(str(problem) for problem in self.problems)
        super().__init__(f"agent {agent!r} cannot be compiled: {count}\n\n{listing}")


# The classes below derive from `BaseException`, as `asyncio.CancelledError` does: a broad `except Exception` in agent
# code must not swallow them, or a retry loop would never end.


class NobodyToAsk(HiveError):
    """`ask_human` in a run that has neither `on_question` nor a store or checkpoint in which it could wait."""


class BudgetExceeded(BaseException):
    """A budget is spent. An agent may catch it by name; otherwise it ends the branch, and the search continues."""


class Suspended(BaseException):
    """A branch waits for answers of people to `questions`, and goes on when the run is resumed. Agents never see it."""

    def __init__(self, questions: Sequence[Any]) -> None:
        super().__init__("the branch waits for a person")
        self.questions = tuple(questions)


class ForeignAwait(BaseException):
    """Raised in agent code that awaits something a search does not support. Ends the run, which raises `problem`."""

    def __init__(self, problem: Exception) -> None:
        super().__init__(str(problem))
        self.problem = problem


class BranchFailed(BaseException):
    """Raised by `fail`: this branch of the search has failed."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
