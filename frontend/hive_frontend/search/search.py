"""A search: runs the states of one agent as its supervisor decides."""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from typing import Any, cast

from hive_frontend import telemetry
from hive_frontend.client.reply import Reply
from hive_frontend.compiler import Thrown, Yield, process
from hive_frontend.compiler.process import Ended, Waiting
from hive_frontend.errors import BranchFailed, BudgetExceeded, SupervisorError, Suspended
from hive_frontend.operation import NOT_NOW, Offer, Scope, enter, leave
from hive_frontend.operations.choice import AskHuman
from hive_frontend.operations.fork import copy as copy_value
from hive_frontend.operations.identity import PIECE, Path, call_seed
from hive_frontend.operations.model_call import ModelCall
from hive_frontend.operations.transition import Caller, Transition
from hive_frontend.runs.questions import Question
from hive_frontend.search.asked import kept_of
from hive_frontend.search.firing import Firing, comparison_with
from hive_frontend.search.long_state import LongState, state_factory
from hive_frontend.search.record import RunRecord
from hive_frontend.supervisors.base import SearchedAgent, Supervisor, check_drop, check_firing
from hive_frontend.supervisors.state import Ask, Drop, Fire, State, best_first

_STEPS_PER_YIELD = 100
"""Transitions without waiting after which the search yields to the event loop."""


class Search:
    """Runs the states of one agent as its supervisor decides."""

    def __init__(
        self,
        run: RunRecord,
        agent: SearchedAgent,
        supervisor: Supervisor,
        caller: Caller,
        awaiting: State | None,
    ) -> None:
        self.agent = agent
        self.awaiting = awaiting
        """The state of another agent that waits for this search; None for the search of the run's own agent."""
        self.finals: list[State] = []
        self.dead: list[State] = []
        self._run = run
        self._supervisor = supervisor
        self._caller = caller
        self._first: State | None = None
        self._offering: State | None = None
        """The state with the best offer of a result."""
        self._queue: deque[tuple[State, int, int | None]] = deque()
        """Firings that have not started: the state, the number of the firing and the option that it takes."""
        self._tasks: dict[asyncio.Task[None], State | None] = {}
        self._cancelling: set[asyncio.Task[None]] = set()
        """Cancelled tasks of dropped states that have not ended yet."""
        self._arrived: deque[Firing | State] = deque()
        """Firings that have an answer, and final states of agents that the supervisor asked."""
        self._error: BaseException | None = None
        self._wakeup: asyncio.Future[None] | None = None
        self._scope = Scope(run.session)
        """The scope in which all segments of the agent's code run, one at a time."""
        self._base = copy_context()
        """The context variables that every branch starts with."""
        self._base.run(enter, self._scope)
        self._fresh = self._base.copy()
        """A copy of `_base` for the next segment of a branch that has set no context variables."""
        self._same_context = comparison_with(self._base)
        self._suspended: dict[State | None, list[Question]] = {}
        """Questions that nobody has answered, by the state that asked them; of voters under None."""
        self._traced = telemetry.active()
        run.session.check_code(agent.name, agent.program.code_hash)

    def start(
        self,
        root: Path,
        code: Callable[[], Waiting | Ended],
        score: float | None = None,
        context: Context | None = None,
    ) -> State:
        """Run `code` to the first state. `context` has the context variables that the agent has set before."""
        used = self._fresh
        if context is not None:
            used = context
            used.run(enter, self._scope)
        try:
            outcome = used.run(code)
        except BaseException as error:
            return self._dead_end(root, None, error, (), score)
        if not self._same_context(used, self._base):
            outcome = self._keep_context(outcome, used)
        return self._new_state(root, None, outcome, (), score)

    def _keep_context(self, outcome: Waiting | Ended, used: Context) -> Waiting | Ended:
        """Attach the context variables that a segment has set to its outcome: they belong to its branch."""
        if used is self._fresh:
            self._fresh = self._base.copy()
        return outcome._replace(context=used) if type(outcome) is Waiting else outcome

    async def explore(self, first: State) -> None:
        """Fire states until the supervisor is done; `finals` and `dead` then have the outcome.

        Nothing of the search is in flight afterwards, even if it raises.
        """
        self._first = first
        for context in (self._base, self._fresh, first.waiting and first.waiting.context):
            if context is not None:
                telemetry.make_current_in(context)
        token = enter(self._scope)
        try:
            self._supervisor.seed = call_seed(self._run.session.seed, first.path, "supervisor")
            self._supervisor.init([first])
            self._decide()
            steps = 0
            while True:
                if self._error is not None:
                    raise self._error
                if self._run.stopped and self.awaiting is None:
                    break
                if self._arrived:
                    arrived = self._arrived.popleft()
                    if isinstance(arrived, State):
                        self._supervisor.commit(arrived)
                    else:
                        self._commit(arrived)
                    self._decide()
                elif self._queue and self._launch():
                    # A model that answers without waiting would otherwise block the event loop.
                    steps += 1
                    if steps % _STEPS_PER_YIELD == 0:
                        await asyncio.sleep(0)
                elif self._queue or self._tasks:
                    self._wakeup = asyncio.get_running_loop().create_future()
                    await self._wakeup
                else:
                    break
        finally:
            leave(token)
            self._run.slots.leave(self)
            tasks, self._tasks = list(self._tasks), {}
            for task in tasks:
                task.cancel()
            # `cancel` is only a request. A cancelled task drops its request and cleans up when it runs next. That
            # must happen before the session, its journal and perhaps the event loop are closed.
            if tasks or self._cancelling:
                await asyncio.gather(*tasks, *self._cancelling, return_exceptions=True)
        self._take_offer()

    @property
    def questions(self) -> list[Question]:
        """The questions that branches wait for, once `explore` has ended."""
        return [question for each in self._suspended.values() for question in each]

    def notify(self) -> None:
        """Wake the search up: an answer has arrived, or a slot may be free."""
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    # Decisions of the supervisor

    def _decide(self) -> None:
        for decision in self._supervisor.fire():
            if type(decision) is Fire:
                self._fire(decision)
            elif isinstance(decision, Drop):
                self._drop(decision.state)
            elif isinstance(decision, Ask):
                self._start_task(self._run_asked_agent(decision), None, None)
            else:
                raise SupervisorError(
                    f"{self._supervisor}: fire() must return Fire, Drop and Ask decisions, not {decision!r}"
                )

    def _fire(self, decision: Fire) -> None:
        state, times = decision.state, decision.times
        check_firing(self._supervisor, decision)
        state.closed = decision.last
        self._run.alive += times if state.fired else times - 1
        state.unstarted += times
        state.unfinished += times
        for _ in range(times):
            self._queue.append((state, state.fired, decision.option))
            state.fired += 1

    def _drop(self, state: State) -> None:
        """Drop a state, and cancel its firings in flight."""
        check_drop(self._supervisor, state)
        if state.unstarted:
            self._queue = deque(entry for entry in self._queue if entry[0] is not state)
        if state.unfinished > state.unstarted:
            for task in [task for task, of in self._tasks.items() if of is state]:
                # Remove it now: the task may already have its answer, which must not be committed.
                del self._tasks[task]
                self._cancelling.add(task)
                task.cancel()
        self._run.alive -= state.unfinished if state.fired else 1
        state.closed = True
        state.unstarted = state.unfinished = 0
        self._suspended.pop(state, None)
        if state.waiting is not None:
            process.warn_of_exits(state.waiting)
        state.waiting = None
        self._run.dropped(state)

    async def _run_asked_agent(self, ask: Ask) -> None:
        """Run an agent that the supervisor asks."""
        run = self._run
        assert self._first is not None
        path = (*self._first.path, -1, *ask.key)
        agent = cast(SearchedAgent, ask.agent)
        caller = agent.caller(run.session, self._caller.meter)
        supervisor = copy.deepcopy(agent.supervisor)
        search = Search(run, agent, supervisor, caller, self._first)
        arguments = agent.bind(*ask.args)
        await search.explore(search.start(path, lambda: process.start(agent.program, arguments)))
        if search.questions:
            self._suspended.setdefault(None, []).extend(search.questions)
            return
        ended = min(search.finals or search.dead, key=best_first, default=None)
        if ended is None:
            raise SupervisorError(
                f"{supervisor} of agent {agent.name!r} dropped all branches, so there is no answer"
            )
        ended.asked = ask
        self._arrived.append(ended)

    # Transitions

    def _launch(self) -> bool:
        """Start the next firing of the queue; return False if no slot is free."""
        state, number, option = self._queue[0]
        run = self._run
        slot = not state.sleeping
        if slot and not run.slots.take(self):
            return False
        try:
            self._queue.popleft()
            firing = self._prepare(state, number)
            firing.transition.option = option
            answer = self._perform_now(firing)
        except BaseException:
            if slot:
                run.slots.give()
            raise
        if answer is NOT_NOW:
            if firing.context is None:
                firing.context = self._base.copy()
            self._start_task(self._perform(firing), state, run.slots if slot else None, firing.context)
            return True
        if slot:
            run.slots.give()
        firing.answer = answer
        self._commit(firing)
        self._decide()
        return True

    def _prepare(self, state: State, number: int) -> Firing:
        """Make a firing with its own copy of the state's variables."""
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
        # The last firing takes the variables themselves, without a copy. It must not if they may be objects of the
        # caller and there are several branches: no branch may change what the caller and other branches see.
        moves = last and (state.fired == 1 or not state.borrowed)
        if not moves:
            waiting = process.fork_branch(waiting, {})
        session = run.session
        path = state.path
        transition = Transition(session, self._caller, path, state.id, number, run, origin=state)
        if len(path) > PIECE:
            assert isinstance(state, LongState)
            transition.long = state.long_path(session.seed)
        return Firing(state, waiting, transition, moves and state.borrowed)

    def _perform_now(self, firing: Firing) -> Any:
        """Return the answer of an operation that does not have to wait, or `NOT_NOW`."""
        try:
            known = None
            if self._run.session.keeps_answers:
                operation = firing.operation
                firing.transition.kept = kept_of(operation, firing.waiting)
                if not isinstance(operation, ModelCall):
                    # Record the request before the operation runs: functions may change their arguments.
                    self._run.session.asked(operation, firing.transition)
                known = self._run.session.recall_error(firing.operation, firing.transition)
            if known is not None:
                return Thrown(known)
            # A traced step needs a task of its own, in which its span is the current one.
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
                {
                    "gen_ai.agent.name": self.agent.name,
                    "hive.state": transition.state,
                    "hive.firing": transition.firing,
                },
            ):
                firing.answer = await firing.operation.perform(transition)
        except Suspended as error:
            # The transition stays unfinished. A resumed run performs it again.
            self._suspended.setdefault(firing.state, []).extend(error.questions)
            return
        except (Exception, BranchFailed, BudgetExceeded) as error:
            if self._run.ends(error):
                raise
            firing.answer = Thrown(error)
        except asyncio.CancelledError as error:
            if asyncio.current_task() not in self._tasks:
                raise
            # The search did not cancel this task: something that the operation awaited was cancelled.
            firing.answer = Thrown(error)
        if firing.state.sleeping:
            self._supervisor.wake(firing.state)
        self._arrived.append(firing)

    def _start_task(
        self, work: Coroutine[Any, Any, None], state: State | None, slots: Any, context: Context | None = None
    ) -> None:
        task = asyncio.create_task(work, context=context)
        self._tasks[task] = state

        def ended(task: asyncio.Task[None]) -> None:
            # In a callback, because the task itself may be cancelled before it starts.
            if slots is not None:
                slots.give()
            self._cancelling.discard(task)
            error = None if task.cancelled() else task.exception()
            if self._tasks.pop(task, self) is not self and error is not None:
                self._error = error
            self.notify()

        task.add_done_callback(ended)

    def _commit(self, firing: Firing) -> None:
        """Resume the agent with the answer, and commit the new state to the supervisor."""
        state = firing.state
        if not state.unfinished:
            return  # The state was dropped just after the answer arrived.
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
            new = self._dead_end(path, state, error, replies, state.score)
        else:
            if not self._same_context(used, self._base):
                outcome = self._keep_context(outcome, used)
            new = self._new_state(path, state, outcome, replies, state.score)
        if type(firing.answer) is Thrown and (not state.sleeping or type(firing.operation) is AskHuman):
            # The agent has handled the error. A resumed run must get the same error here.
            run.session.keep_error(firing.operation, transition, firing.answer.error)
        new.borrowed = firing.borrowed
        new.results = transition.results
        self._supervisor.commit(new)

    # New states

    def _new_state(
        self,
        path: Path,
        parent: State | None,
        outcome: Waiting | Ended,
        replies: tuple[Reply, ...],
        score: float | None,
    ) -> State:
        """Record the state that a segment of the agent's code led to. `score` applies if that code gave none."""
        given, self._scope.score = self._scope.score, None
        score = score if given is None else given
        waiting = outcome if type(outcome) is Waiting else None
        operation: Any = outcome if waiting is None else waiting.operation
        if isinstance(operation, (Ended, Yield)):
            at_end: dict[str, Any] = {"kind": "final", "value": operation.value}
        else:
            at_end = {"kind": "waiting", "sleeping": operation.sleeps}
        make = state_factory(path, self.awaiting)
        state = make(path, parent, score=score, waiting=waiting, replies=replies, **at_end)
        if state.kind == "final":
            self.finals.append(state)
        elif type(given) is Offer:
            # The branch may go on to change the object.
            given.result = copy_value(given.result, {})
            self._offering = min(self._offering or state, state, key=best_first)
        self._run.add_state(self.agent.name, self.awaiting, state)
        return state

    def _take_offer(self) -> None:
        """Make the best offer a result, unless a branch has returned one that is as good."""
        best = None if self.agent.program.is_generator else self._offering
        if best is None or any(best_first(final)[0] <= best_first(best)[0] for final in self.finals):
            return
        assert isinstance(best.score, Offer)
        path, value = (*best.path, best.fired), best.score.result
        state = state_factory(path, self.awaiting)(path, best, score=best.score, kind="final", value=value)
        state.offered = True
        self.finals.append(state)
        self._run.add_state(self.agent.name, self.awaiting, state)

    def _dead_end(
        self,
        path: Path,
        parent: State | None,
        error: BaseException,
        replies: tuple[Reply, ...],
        score: float | None,
    ) -> State:
        """Record the dead end that an error led to, or raise the error if it ends the run."""
        self._scope.score = None
        if not isinstance(error, self._run.ends_branch):
            where = f"after state {parent.name!r} ({parent.id})" if parent else "before its first await"
            error.add_note(f"raised by agent {self.agent.name!r} {where}")
            raise error
        make, spent = state_factory(path, self.awaiting), isinstance(error, BudgetExceeded)
        state = make(path, parent, score=score, kind="dead", failure=str(error), spent=spent, replies=replies)
        self.dead.append(state)
        self._run.add_state(self.agent.name, self.awaiting, state)
        if self.awaiting is None:
            self._run.drop(state, error)
        return state
