"""A run: the search of its own agent, and the nested searches of agents that this one calls."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context
from typing import Any, cast

from hive_frontend import telemetry
from hive_frontend.compiler import process
from hive_frontend.compiler.process import Ended, Waiting
from hive_frontend.errors import BranchFailed, BudgetExceeded, ForeignAwait, Suspended
from hive_frontend.operations.transition import Caller, Transition
from hive_frontend.search.record import OnError, OnEvent, RunRecord, StopAt
from hive_frontend.search.search import Search
from hive_frontend.search.session import Session
from hive_frontend.supervisors.base import SearchedAgent, Supervisor
from hive_frontend.supervisors.state import State, best_first


class Run(RunRecord):
    """One run of an agent under a supervisor."""

    def __init__(
        self,
        agent: SearchedAgent,
        session: Session,
        supervisor: Supervisor,
        listeners: Sequence[OnEvent],
        max_concurrency: int,
        on_error: OnError = "raise",
        stop_at: StopAt | None = None,
    ) -> None:
        super().__init__(agent.name, session, listeners, max_concurrency, on_error, stop_at)
        self._searched = agent
        self._supervisor = supervisor

    async def search(self, arguments: dict[str, Any]) -> None:
        """Search the run's own agent."""
        search = Search(self, self._searched, self._supervisor, self._searched.caller(self.session), None)
        self.wake = search.notify
        with self._span_of(search, self._supervisor) as span:
            try:
                await search.explore(
                    search.start(
                        self.session.new_root(), lambda: process.start(self._searched.program, arguments)
                    )
                )
            except ForeignAwait as error:
                for note in getattr(error, "__notes__", ()):
                    error.problem.add_note(note)
                raise error.problem.with_traceback(error.__traceback__) from None
            self.questions = tuple(search.questions)
            self.session.paused = bool(self.questions)
            self.raise_if_all_dropped()
            totals = self.session.totals
            span.set(
                {
                    "hive.seed": str(self.session.seed),
                    "hive.states_fired": self.fired,
                    "hive.requests": totals.requests,
                    "hive.tokens_generated": totals.tokens_generated,
                    "hive.tokens_replayed": totals.tokens_replayed,
                    "gen_ai.usage.input_tokens": totals.prompt_tokens or None,
                    "gen_ai.usage.cache_read.input_tokens": totals.cached_tokens or None,
                    "gen_ai.usage.output_tokens": totals.tokens_generated + totals.tokens_replayed,
                }
            )
        self.report("finished")

    @contextmanager
    def _span_of(self, search: Search, supervisor: Supervisor) -> Iterator[telemetry.Span]:
        """Open the span of an agent's search."""
        attributes = {
            "gen_ai.provider.name": "hive",
            "gen_ai.agent.name": search.agent.name,
            "gen_ai.conversation.id": self.session.id,
            "hive.supervisor": type(supervisor).__name__,
        }
        with telemetry.span("invoke_agent", search.agent.name, attributes) as span:
            yield span
            span.set({"hive.results": len(search.finals), "hive.dead": len(search.dead)})

    async def start_search(
        self, agent: SearchedAgent, arguments: dict[str, Any], caller: Caller, transition: Transition
    ) -> State:
        """Run another agent from its start, as part of a transition; return its best final state."""
        code = functools.partial(process.start, agent.program, arguments)
        return await self._search_inside(agent, code, None, None, caller, transition)

    async def resume_search(
        self,
        agent: SearchedAgent,
        waiting: Waiting,
        value: Any,
        score: float | None,
        caller: Caller,
        transition: Transition,
    ) -> State:
        """Resume another agent at a `yield`, as part of a transition; return its best final state."""
        code = functools.partial(process.resume, waiting, value)
        return await self._search_inside(agent, code, score, waiting.context, caller, transition)

    async def _search_inside(
        self,
        agent: SearchedAgent,
        code: Callable[[], Waiting | Ended],
        score: float | None,
        context: Context | None,
        caller: Caller,
        transition: Transition,
    ) -> State:
        awaiting = cast(State, transition.origin)
        supervisor = copy.deepcopy(agent.supervisor)
        search = Search(self, agent, supervisor, caller, awaiting)
        with self._span_of(search, supervisor):
            await search.explore(search.start(transition.new_inner_path(), code, score, context))
        if search.questions:
            raise Suspended(search.questions)
        if not search.finals:
            raise _failure_of(agent, sorted(search.dead, key=best_first))
        best = min(search.finals, key=best_first)
        for state in search.finals:
            if state is not best:
                state.waiting = None
        return best


def _failure_of(agent: SearchedAgent, dead: Sequence[State]) -> BranchFailed | BudgetExceeded:
    """Return the exception for an awaited agent that has no final state."""
    if not dead:
        return BranchFailed(f"agent {agent.name}: its supervisor dropped all branches")
    if all(state.spent for state in dead):
        return BudgetExceeded(str(dead[0].failure))
    return BranchFailed(f"agent {agent.name}: {dead[0].failure}")
