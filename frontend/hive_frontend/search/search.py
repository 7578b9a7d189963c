"""Searches: the states of one agent under its supervisor."""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from operator import eq, is_
from typing import Any, cast

from hive_frontend import telemetry
from hive_frontend.client.reply import Reply
from hive_frontend.compiler import Thrown, Yield, process
from hive_frontend.compiler.process import Ended, Waiting
from hive_frontend.errors import BranchFailed, BudgetExceeded, SupervisorError
from hive_frontend.operation import NOT_NOW, Scope, enter, leave
from hive_frontend.operations.fork import ATOMS
from hive_frontend.operations.identity import PIECE, Path
from hive_frontend.operations.model_call import ModelCall
from hive_frontend.operations.transition import Caller, Transition
from hive_frontend.search.asked import kept_of
from hive_frontend.search.firing import Firing
from hive_frontend.search.long_state import LongState, maker
from hive_frontend.search.record import RunRecord
from hive_frontend.supervisors.base import SearchedAgent, Supervisor
from hive_frontend.supervisors.state import Ask, Drop, Fire, State, by_promise

_BY_IDENTITY: Any = object.__eq__

_BREATH = 100
"""Transitions that may follow each other without a turn for the rest of the event loop."""


def _same(one: Context, other: Context) -> bool:
    """Whether two contexts have the same objects; what is equal to another object may still be changed alone."""
    return len(one) == len(other) and all(map(is_, one.values(), other.values()))


class Search:
    """The states of one agent under its supervisor."""

    def __init__(
        self,
        run: RunRecord,
        agent: SearchedAgent,
        supervisor: Supervisor,
        caller: Caller,
        above: State | None,
    ) -> None:
        self.agent = agent
        self.above = above
        """The state of another agent that waits for this search; None for that of the run itself."""
        self.finals: list[State] = []
        self.dead: list[State] = []
        self._run = run
        self._supervisor = supervisor
        self._caller = caller
        self._first: State | None = None
        self._queue: deque[tuple[State, int]] = deque()
        self._tasks: dict[asyncio.Task[None], State | None] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        """Tasks of dropped states that are cancelled, but not over yet."""
        self._arrived: deque[Firing | State] = deque()
        """Firings that have their answer, and final states of agents that the supervisor asked."""
        self._error: BaseException | None = None
        self._call: asyncio.Future[None] | None = None
        self._scope = Scope(run.session)
        """What all stretches of the agent's code run in, one after the other."""
        self._base = copy_context()
        """The context variables that branches begin with."""
        self._base.run(enter, self._scope)
        self._fresh = self._base.copy()
        """The same, for the next stretch of a branch that has set none of its own."""
        plain = all(
            type(value).__eq__ is _BY_IDENTITY or type(value) in ATOMS for value in self._base.values()
        )
        self._same: Callable[[Context, Context], bool] = eq if plain else _same
        """Whether two contexts have the same objects. Where what is equal is as good as the same, Python tells that
        faster."""
        self._traced = telemetry.active()
        run.session.check_code(agent.name, agent.program.code_hash)

    def start(
        self,
        root: Path,
        code: Callable[[], Waiting | Ended],
        score: float | None = None,
        context: Context | None = None,
    ) -> State:
        """The first state, to which `code` leads; `context` has what the agent has set before."""
        used = self._fresh
        if context is not None:
            used = context
            used.run(enter, self._scope)
        try:
            outcome = used.run(code)
        except BaseException as error:
            return self._stop(root, None, error, (), score)
        if not self._same(used, self._base):
            outcome = self._with_own(outcome, used)
        return self._reach(root, None, outcome, (), score)

    def _with_own(self, outcome: Waiting | Ended, used: Context) -> Waiting | Ended:
        """What a stretch led to that has set context variables: they are its branch's from here on."""
        if used is self._fresh:
            self._fresh = self._base.copy()
        return outcome._replace(context=used) if type(outcome) is Waiting else outcome

    async def explore(self, first: State) -> None:
        """Fire states until the supervisor wants no more; `finals` and `dead` have what came of it.

        However it ends, nothing of the search is under way afterwards.
        """
        with telemetry.span(
            "search", self.agent.name, supervisor=type(self._supervisor).__name__, state=first.id
        ) as span:
            await self._explore(first)
            span.set(finals=len(self.finals), dead=len(self.dead))

    async def _explore(self, first: State) -> None:
        self._first = first
        for context in (self._base, self._fresh, first.waiting and first.waiting.context):
            if context is not None:
                telemetry.make_current_in(context)
        token = enter(self._scope)
        try:
            self._supervisor.init([first])
            self._decide()
            steps = 0
            while True:
                if self._error is not None:
                    raise self._error
                if self._arrived:
                    arrived = self._arrived.popleft()
                    if isinstance(arrived, State):
                        self._supervisor.commit(arrived)
                    else:
                        self._commit(arrived)
                    self._decide()
                elif self._queue and self._launch():
                    # Rarely, or a model that answers at once would never let anything else run.
                    steps += 1
                    if steps % _BREATH == 0:
                        await asyncio.sleep(0)
                elif self._queue or self._tasks:
                    self._call = asyncio.get_running_loop().create_future()
                    await self._call
                else:
                    break
        finally:
            leave(token)
            self._run.slots.leave(self)
            tasks, self._tasks = list(self._tasks), {}
            for task in tasks:
                task.cancel()
            # Cancelling only asks a task to stop. It gives its request up, and cleans up, when it runs next, and
            # that must be before the end of the session, of its journal, and perhaps of the event loop.
            if tasks or self._leaving:
                await asyncio.gather(*tasks, *self._leaving, return_exceptions=True)

    def notify(self) -> None:
        """Have the search look again: an answer has arrived, or a slot may be free."""
        if self._call is not None and not self._call.done():
            self._call.set_result(None)

    # What the supervisor wants

    def _decide(self) -> None:
        for decision in self._supervisor.fire():
            if type(decision) is Fire:
                self._fire(decision)
            elif isinstance(decision, Drop):
                self._drop(decision.state)
            elif isinstance(decision, Ask):
                self._begin(self._answer(decision), None, None)
            else:
                raise SupervisorError(
                    f"{self._supervisor}: fire() must give Fire, Drop and Ask, not {decision!r}"
                )

    def _fire(self, decision: Fire) -> None:
        state, times = decision.state, decision.times
        if state.kind != "waiting" or state.closed:
            why = f"is {state.kind}" if state.kind != "waiting" else "was fired for the last time, or dropped"
            raise SupervisorError(f"{self._supervisor} wants {decision!r}, but that state {why}")
        if times < 1:
            raise SupervisorError(f"{self._supervisor} wants {decision!r}: times must be at least 1")
        state.closed = decision.last
        self._run.alive += times if state.fired else times - 1
        state.unstarted += times
        state.unfinished += times
        for _ in range(times):
            self._queue.append((state, state.fired))
            state.fired += 1

    def _drop(self, state: State) -> None:
        """Give a state up, and cancel those of its firings that are under way."""
        if state.kind != "waiting" or (state.closed and not state.unfinished):
            why = f"is {state.kind}" if state.kind != "waiting" else "is done with"
            raise SupervisorError(f"{self._supervisor} drops {state!r}, but that state {why}")
        if state.unstarted:
            self._queue = deque(entry for entry in self._queue if entry[0] is not state)
        if state.unfinished > state.unstarted:
            for task in [task for task, of in self._tasks.items() if of is state]:
                # Out of the books at once: the task may have its answer already.
                del self._tasks[task]
                self._leaving.add(task)
                task.cancel()
        self._run.alive -= state.unfinished if state.fired else 1
        state.closed = True
        state.unstarted = state.unfinished = 0
        if state.waiting is not None:
            process.warn_of_exits(state.waiting)
        state.waiting = None
        self._run.report("dropped", state)

    async def _answer(self, ask: Ask) -> None:
        """Run the agent that the supervisor asks."""
        run = self._run
        assert self._first is not None
        path = (*self._first.path, -1, *ask.key)
        agent = cast(SearchedAgent, ask.agent)
        caller = agent.caller(run.session, self._caller.meter)
        supervisor = copy.deepcopy(agent.supervisor)
        search = Search(run, agent, supervisor, caller, self._first)
        arguments = agent.bind(*ask.args)
        await search.explore(search.start(path, lambda: process.start(agent.program, arguments)))
        ended = min(search.finals or search.dead, key=by_promise, default=None)
        if ended is None:
            raise SupervisorError(f"{supervisor} of agent {agent.name!r} gave all branches up")
        ended.asked = ask
        self._arrived.append(ended)

    # Transitions

    def _launch(self) -> bool:
        """Begin the next firing of the queue; False if there is no slot for it."""
        state, number = self._queue[0]
        run = self._run
        slot = not state.sleeping
        if slot and not run.slots.take(self):
            return False
        try:
            self._queue.popleft()
            firing = self._prepare(state, number)
            answer = self._perform_now(firing)
        except BaseException:
            if slot:
                run.slots.give()
            raise
        if answer is NOT_NOW:
            if firing.context is None:
                firing.context = self._base.copy()
            self._begin(self._perform(firing), state, run.slots if slot else None, firing.context)
            return True
        if slot:
            run.slots.give()
        firing.answer = answer
        self._commit(firing)
        self._decide()
        return True

    def _prepare(self, state: State, number: int) -> Firing:
        """Give a firing its own variables."""
        run = self._run
        run.fired += 1
        if run.has_listeners:
            run.report("fired", state)
        waiting = state.waiting
        assert waiting is not None
        state.unstarted -= 1
        last = state.closed and not state.unstarted
        if last:
            state.waiting = None
        # The last branch takes the variables themselves, unless they are not the search's to give away: of
        # several branches none may change what the caller holds, too.
        moves = last and (state.fired == 1 or not state.borrowed)
        if not moves:
            waiting = process.fork_branch(waiting, {})
        session = run.session
        path = state.path
        transition = Transition(session, self._caller, path, state.id, number, run)
        transition.origin = state
        if len(path) > PIECE:
            assert isinstance(state, LongState)
            transition.long = state.long_path(session.seed)
        return Firing(state, waiting, transition, moves and state.borrowed)

    def _perform_now(self, firing: Firing) -> Any:
        """The answer of an operation that need not be waited for, or `NOT_NOW`."""
        try:
            known = None
            if self._run.session.keeps_answers:
                operation = firing.operation
                firing.transition.kept = kept_of(operation, firing.waiting)
                if not isinstance(operation, ModelCall):
                    # Before it is done: functions may change what they are given.
                    self._run.session.asked(operation, firing.transition)
                known = self._run.session.recall_error(firing.operation, firing.transition)
            if known is not None:
                return Thrown(known)
            # A step that is traced has a task of its own, in which its span is the current one.
            if self._traced:
                return NOT_NOW
            if firing.context is None:
                return firing.operation.perform_now(firing.transition)
            return firing.context.run(firing.operation.perform_now, firing.transition)
        except (Exception, BranchFailed, BudgetExceeded) as error:
            if self._run.ends(error):
                raise
            return Thrown(error)

    async def _perform(self, firing: Firing) -> None:
        transition = firing.transition
        try:
            with telemetry.span(
                "step",
                firing.state.name,
                agent=self.agent.name,
                state=transition.state,
                firing=transition.firing,
            ):
                firing.answer = await firing.operation.perform(transition)
        except (Exception, BranchFailed, BudgetExceeded) as error:
            if self._run.ends(error):
                raise
            firing.answer = Thrown(error)
        except asyncio.CancelledError as error:
            if asyncio.current_task() not in self._tasks:
                raise
            # Nobody here asked for it: something that the operation awaited was cancelled.
            firing.answer = Thrown(error)
        if firing.state.sleeping:
            self._supervisor.wake(firing.state)
        self._arrived.append(firing)

    def _begin(
        self,
        work: Coroutine[Any, Any, None],
        state: State | None,
        slots: Any,
        context: Context | None = None,
    ) -> None:
        task = asyncio.create_task(work, context=context)
        self._tasks[task] = state

        def ended(task: asyncio.Task[None]) -> None:
            # Not in the task itself, which may be cancelled before it has begun.
            if slots is not None:
                slots.give()
            self._leaving.discard(task)
            error = None if task.cancelled() else task.exception()
            if self._tasks.pop(task, self) is not self and error is not None:
                self._error = error
            self.notify()

        task.add_done_callback(ended)

    def _commit(self, firing: Firing) -> None:
        """Run the agent on with its answer, and hand the state that it leads to to the supervisor."""
        state = firing.state
        if not state.unfinished:
            return  # It was dropped when the answer had just come.
        state.unfinished -= 1
        run = self._run
        run.alive -= 1
        transition = firing.transition
        path = (*transition.path, transition.firing)
        replies = tuple(transition.replies)
        used = firing.context or self._fresh
        try:
            outcome = used.run(process.resume, firing.waiting, firing.answer)
        except BaseException as error:
            if used is self._fresh:
                self._fresh = self._base.copy()
            new = self._stop(path, state, error, replies, state.score)
        else:
            if not self._same(used, self._base):
                outcome = self._with_own(outcome, used)
            new = self._reach(path, state, outcome, replies, state.score)
        if type(firing.answer) is Thrown and not state.sleeping:
            # The run goes on from here, so it must do so again when it is resumed.
            run.session.keep_error(firing.operation, transition, firing.answer.error)
        new.borrowed = firing.borrowed
        self._supervisor.commit(new)

    # New states

    def _reach(
        self,
        path: Path,
        parent: State | None,
        outcome: Waiting | Ended,
        replies: tuple[Reply, ...],
        score: float | None,
    ) -> State:
        """Enter the state that a stretch of the agent's code led to; `score` holds if that code gave none."""
        make = maker(path, self.above)
        given, self._scope.score = self._scope.score, None
        if given is not None:
            score = given
        if type(outcome) is not Waiting:
            assert isinstance(outcome, Ended)
            state = make(path, parent, score=score, kind="final", value=outcome.value, replies=replies)
        elif isinstance(operation := outcome.operation, Yield):
            value = operation.value
            state = make(
                path, parent, score=score, kind="final", waiting=outcome, value=value, replies=replies
            )
        else:
            sleeping = operation.sleeps
            state = make(
                path, parent, score=score, kind="waiting", waiting=outcome, sleeping=sleeping, replies=replies
            )
        if state.kind == "final":
            self.finals.append(state)
        self._run.enter(self.agent.name, self.above, state)
        return state

    def _stop(
        self,
        path: Path,
        parent: State | None,
        error: BaseException,
        replies: tuple[Reply, ...],
        score: float | None,
    ) -> State:
        """Enter the dead end that the agent's code led to, or raise what ends the run."""
        self._scope.score = None
        if not isinstance(error, self._run.ends_branch):
            where = f"after state {parent.name!r} ({parent.id})" if parent else "before its first await"
            error.add_note(f"raised by agent {self.agent.name!r} {where}")
            raise error
        spent = isinstance(error, BudgetExceeded)
        make = maker(path, self.above)
        state = make(path, parent, score=score, kind="dead", failure=str(error), spent=spent, replies=replies)
        self.dead.append(state)
        self._run.enter(self.agent.name, self.above, state)
        if self.above is None:
            self._run.drop(state, error)
        return state
