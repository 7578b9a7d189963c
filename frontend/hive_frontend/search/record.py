"""The record of a run: what its searches share, and the outcome of all their states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from hive_frontend.client.reply import Reply
from hive_frontend.compiler import Yield
from hive_frontend.errors import BranchFailed, BudgetExceeded, JournalError, ModelError, ToolTimeout
from hive_frontend.operation import Call, Offer
from hive_frontend.operations.identity import Path
from hive_frontend.operations.transition import RunContract
from hive_frontend.runs.questions import Question
from hive_frontend.search.events import Event, EventKind, Progress
from hive_frontend.search.run_result import Result
from hive_frontend.search.session import Session
from hive_frontend.supervisors.state import State, best_first
from hive_frontend.tree import SearchTree, Status, TreeNode

OnError = Literal["raise", "drop"]
OnEvent = Callable[[Event], object]
StopAt = float | Callable[[Result[Any]], object]


class _Record(NamedTuple):
    """The data of a state for the search tree.

    It has no reference to the search, which refers to the run: without reference cycles, memory of a run is freed
    at once.
    """

    state: State
    agent: str
    parent: State | None
    of_run: bool
    """Whether it is a state of the run's own agent."""
    calls: tuple[Call, ...]
    line: int | None


class RunRecord(RunContract):
    """What the searches of one run share: the session, the slots and the counts of states."""

    def __init__(
        self,
        agent: str,
        session: Session,
        listeners: Sequence[OnEvent],
        max_concurrency: int,
        on_error: OnError = "raise",
        stop_at: StopAt | None = None,
    ) -> None:
        self._stop_at = stop_at
        self._agent = agent
        self._listeners = tuple(listeners)
        self.has_listeners = bool(self._listeners)
        self.session = session
        self.slots = Slots(max_concurrency)
        self._records: dict[State, _Record] = {}
        self._results: list[State] = []
        self._fatal: Exception | None = None
        self.ends_branch: tuple[type[BaseException], ...] = (BranchFailed, BudgetExceeded)
        """Exceptions that end the branch they are raised in; all others end the run."""
        if on_error == "drop":
            self.ends_branch += (ModelError, ToolTimeout)
        self._dropped: dict[State, Exception] = {}
        """Dead ends of the run's own agent that were caused by an error, with the error."""
        self._spent = False
        """Whether a branch of the run's own agent ended because a budget was spent."""
        self.fired = 0
        self.alive = 0
        self._dead = 0
        self._best_score: float | None = None
        self.questions: tuple[Question, ...] = ()
        """The questions that branches of the run wait for, once all others have ended."""
        self.stopped = False
        """Whether the run ends now, with what it has found."""
        self.wake: Callable[[], None] | None = None
        """Wakes the search of the run's own agent."""

    def ends(self, error: BaseException) -> bool:
        """Whether an error ends the run and agents cannot catch it: a journal of another run, or a failed listener."""
        return error is self._fatal or isinstance(error, JournalError)

    def drop(self, state: State, error: BaseException) -> None:
        """Record that an error caused a dead end of the run's own agent."""
        if isinstance(error, Exception):
            self._dropped[state] = error

    def raise_if_all_dropped(self) -> None:
        """Raise the first of the errors that ended branches, if errors ended all branches of the run's own agent."""
        ends = [
            record.state for record in self._records.values() if record.of_run and record.state.kind == "dead"
        ]
        if self._dropped and not self._results and not self.questions and len(ends) == len(self._dropped):
            raise self._dropped[min(self._dropped, key=_tree_order)]

    def add_state(self, agent: str, awaiting: State | None, state: State) -> None:
        """Record a new state of an agent. `awaiting` is the state of the agent that waits for this one, if any."""
        waiting, line = state.waiting, None
        calls: tuple[Call, ...] = ()
        if waiting is not None:
            line = waiting.point.line
            if not isinstance(waiting.operation, Yield):
                calls = waiting.operation.calls
        self._records[state] = _Record(state, agent, state.parent or awaiting, awaiting is None, calls, line)
        kind: EventKind = "committed"
        if state.kind == "waiting":
            self.alive += 1
        elif state.kind == "dead":
            kind = "dead"
            self._dead += 1
            self._discard(state)
            self._spent |= state.spent and awaiting is None
        else:
            kind = "final"
            if awaiting is None:
                self._results.append(state)
        best = self._best_score
        if state.kind != "dead" and state.score is not None and (best is None or state.score > best):
            self._best_score = state.score
        if awaiting is None and self._is_enough(state):
            self.stop()
        if self._listeners:
            self.report(kind, state, state.replies)

    def stop(self) -> None:
        """End the run now. Its result has what it has found so far."""
        self.stopped = True
        if self.wake is not None:
            self.wake()

    def _is_enough(self, state: State) -> bool:
        """Whether a new result, or a newly offered one, ends the run."""
        if self._stop_at is None or (
            state.kind == "waiting" and state.parent and state.score is state.parent.score
        ):
            return False
        if (result := result_of(state)) is None:
            return False
        if callable(self._stop_at):
            return bool(self._stop_at(result))
        return result.score is not None and result.score >= self._stop_at

    def dropped(self, state: State) -> None:
        """Record that the supervisor dropped a state."""
        if not state.fired:
            self._discard(state)
        self.report("dropped", state)

    def _discard(self, state: State) -> None:
        """Discard the KV of the answers that led to a state from which no branch continues."""
        if state.replies and state.parent is not None:
            self.session.discard(state.parent.id, state.path[-1])

    def report(self, kind: EventKind, state: State | None = None, replies: tuple[Reply, ...] = ()) -> None:
        """Send an event to the listeners."""
        if not self._listeners:
            return
        totals = self.session.totals
        progress = Progress(
            fired=self.fired,
            alive=self.alive,
            dead=self._dead,
            results=len(self._results),
            best_score=self._best_score,
            requests=totals.requests,
            tokens_generated=totals.tokens_generated,
            tokens_replayed=totals.tokens_replayed,
            elapsed_s=self.session.elapsed,
        )
        detail = None
        if state is not None and state.kind != "waiting":
            detail = state.failure if state.kind == "dead" else repr(state.value)
        event = Event(
            kind=kind,
            progress=progress,
            agent=self._records[state].agent if state else None,
            state=state.id if state else None,
            name=state.name if state else None,
            step=state.parent.name if state and state.parent else None,
            score=state.score if state else None,
            replies=tuple(reply.shown for reply in replies),
            tokens_generated=sum(reply.tokens_generated for reply in replies),
            tokens_replayed=sum(reply.tokens_replayed for reply in replies),
            detail=detail,
        )
        try:
            for listener in self._listeners:
                listener(event)
        except Exception as error:
            self._fatal = error
            raise

    @property
    def results(self) -> list[State]:
        """Final states of the run's own agent, best first."""
        return sorted(self._results, key=best_first)

    @property
    def best_unfinished(self) -> State | None:
        """The state with the best score, if the run was stopped or its budget spent before any result; else None."""
        if self._results or not (self._spent or self.stopped):
            return None
        scored = (
            state
            for state, record in self._records.items()
            if record.of_run and state.kind == "waiting" and state.score is not None
        )
        return min(scored, key=best_first, default=None)

    def tree(self) -> SearchTree:
        """Return the tree of all states of all searches."""
        results = self.results
        return SearchTree(
            agent=self._agent,
            nodes=[
                _node(self._records[state], self.stopped) for state in sorted(self._records, key=_tree_order)
            ],
            best=results[0].id if results else None,
        )


def result_of(state: State) -> Result[Any] | None:
    """Return the result that a state has or offers; None if it has none."""
    score = state.score
    if state.kind == "final":
        value = state.value
    elif state.kind == "waiting" and isinstance(score, Offer):
        value = score.result
    else:
        return None
    finished = state.kind == "final" and not state.offered
    return Result(value, None if score is None else float(score), state.id, finished=finished)


class _Waiter(Protocol):
    def notify(self) -> None: ...


class Slots:
    """Limits the transitions in flight, over all searches of a run."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: dict[_Waiter, None] = {}

    def take(self, search: _Waiter) -> bool:
        """Take a slot and return True; if none is free, return False and notify `search` once one may be."""
        if not self._free:
            self._waiting[search] = None
            return False
        self._free -= 1
        return True

    def give(self) -> None:
        """Return a slot."""
        self._free += 1
        if not self._waiting:
            return
        # Notify all that wait, in the order of their arrival: the first may not need the slot any more.
        waiting, self._waiting = self._waiting, {}
        for search in waiting:
            search.notify()

    def leave(self, search: _Waiter) -> None:
        """Stop waiting."""
        self._waiting.pop(search, None)


def _tree_order(state: State) -> tuple[Path, ...]:
    return state.order


def _node(record: _Record, stopped: bool) -> TreeNode:
    state = record.state
    status: Status = "expanded" if state.fired else "pruned"
    if state.kind == "waiting" and state.unfinished and not stopped:
        status = "waiting"
    if state.kind == "final":
        status = "result" if record.of_run else "returned"
    elif state.kind == "dead":
        status = "dead"
    return TreeNode(
        id=state.id,
        parent=record.parent.id if record.parent else None,
        name=state.name,
        line=record.line,
        agent=record.agent,
        status=status,
        score=state.score,
        replies=[reply.shown for reply in state.replies],
        results=list(state.results),
        prompts=[call.shown for call in record.calls],
        fired=state.fired,
        tokens_generated=sum(reply.tokens_generated for reply in state.replies),
        tokens_replayed=sum(reply.tokens_replayed for reply in state.replies),
        failure=state.failure,
        value=repr(state.value) if state.kind == "final" else None,
    )
