"""Every error that a user of the frontend can meet, each with a message that says what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class HiveError(Exception):
    """Base of all errors raised by the frontend."""


class NoModelError(HiveError):
    """A language model was needed where none is known."""


class ForkError(HiveError):
    """A state could not be copied, so it cannot be fired more than once."""


class SupervisorError(HiveError):
    """A supervisor is misconfigured or asked for something that cannot be done."""


class ModelError(HiveError):
    """The model server refused a request or answered with something unusable.

    `status` is the HTTP status where there was one.
    """

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class ToolTimeout(HiveError):
    """A tool took longer than it was given."""


class ChildEnded(HiveError):
    """`next` or `resume` was called on a spawned agent that has ended."""


class JournalError(HiveError):
    """A checkpoint or recording does not belong to this run, is damaged, or lacks an answer."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One construct that the compiler does not support, with the way out."""

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
    """An agent uses constructs that cannot become states; lists all of them, not just the first."""

    def __init__(self, agent: str, problems: Sequence[Problem]) -> None:
        self.agent = agent
        self.problems = tuple(problems)
        count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        listing = "\n\n".join(str(problem) for problem in self.problems)
        super().__init__(f"agent {agent!r} cannot be compiled: {count}\n\n{listing}")


# What follows is no `Exception`, for the reason that `asyncio.CancelledError` is none: a broad `except Exception`
# around the user's own parsing must not swallow it, or a loop that tries again would never end.


class BudgetExceeded(BaseException):
    """A budget is spent. An agent may catch it by its name; otherwise it ends the branch, and the search goes on."""


class ForeignAwait(BaseException):
    """Raised in agent code that awaits what a search cannot do; ends the run, which raises its `problem`."""

    def __init__(self, problem: Exception) -> None:
        super().__init__(str(problem))
        self.problem = problem


class BranchFailed(BaseException):
    """Raised by `fail`: this branch of the search is dead."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
