"""Searches: the states of one agent under its supervisor, and the run that holds all of them together."""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hive_frontend import process
from hive_frontend.compiler import Program, Thrown, Yield
from hive_frontend.errors import BranchFailed, BudgetExceeded, SupervisorError
from hive_frontend.events import Event, EventKind, Progress
from hive_frontend.fork import Memo
from hive_frontend.identity import Path
from hive_frontend.operation import NOT_NOW
from hive_frontend.process import Ended, Waiting
from hive_frontend.scope import Scope, enter, leave
from hive_frontend.search_tree import SearchTree, Status, TreeNode
from hive_frontend.state import State, by_promise
from hive_frontend.supervisors.base import Ask, Drop, Fire, Supervisor
from hive_frontend.transition import Caller, Transition

if TYPE_CHECKING:
    from hive_frontend.agent import Agent
    from hive_frontend.call import Gen
    from hive_frontend.reply import Reply
    from hive_frontend.session import Session

OnEvent = Callable[[Event], object]

_BREATH = 100
"""Transitions that may follow each other without a turn for the rest of the event loop."""


@dataclass(slots=True)
class _Record:
    """What the search tree says about a state."""

    state: State
    agent: str
    above: State | None
    calls: tuple[Gen, ...]
    line: int | None
    of_run: bool


class Run:
    """What the searches of one run share: the session, the slots, the books."""

    def __init__(
        self,
        agent: Agent[..., Any],
        session: Session,
        supervisor: Supervisor,
        listeners: Sequence[OnEvent],
        max_concurrency: int,
    ) -> None:
        self._agent = agent
        self._supervisor = supervisor
        self._listeners = tuple(listeners)
        self.has_listeners = bool(self._listeners)
        self.session = session
        self.slots = Slots(max_concurrency)
        self._records: dict[Path, _Record] = {}
        self._results: list[State] = []
        self.outer: dict[Program, Memo] = {}
        """What outer names of the run's programs refer to: it is looked up once, not at every fork."""
        self.fired = 0
        self.alive = 0
        self._dead = 0
        self._best_score: float | None = None

    async def search(self, arguments: dict[str, Any]) -> None:
        """The search that the run is about."""
        search = Search(self, self._agent, self._supervisor, self._agent.caller(self.session), None)
        await search.explore(
            search.start(self.session.new_root(), lambda: process.start(self._agent.program, arguments))
        )
        self.report("finished")

    async def search_new(
        self, agent: Agent[..., Any], arguments: dict[str, Any], transition: Transition
    ) -> State:
        """Run another agent from its beginning, as part of a transition; its best final state."""
        return await self._search_inside(
            agent, lambda: process.start(agent.program, arguments), None, transition
        )

    async def search_on(
        self,
        agent: Agent[..., Any],
        waiting: Waiting,
        value: Any,
        score: float | None,
        transition: Transition,
    ) -> State:
        """Run another agent on from a `yield`, as part of a transition; its best final state."""
        return await self._search_inside(agent, lambda: process.resume(waiting, value), score, transition)

    async def _search_inside(
        self,
        agent: Agent[..., Any],
        code: Callable[[], Waiting | Ended],
        score: float | None,
        transition: Transition,
    ) -> State:
        caller = agent.caller(self.session, transition.caller.meter)
        above = self._records[transition.path].state
        search = Search(self, agent, copy.deepcopy(agent.supervisor), caller, above)
        root = search.start(transition.new_inner_path(), code, score)
        await search.explore(root)
        if not search.finals:
            reasons = [f"{record.failure}" for record in sorted(search.dead, key=by_promise)]
            what = reasons[0] if reasons else "its supervisor gave all branches up"
            raise BranchFailed(f"agent {agent.name}: {what}")
        return min(search.finals, key=by_promise)

    # The books

    def enter(self, search: Search, state: State) -> None:
        """Take up a new state."""
        waiting = state.waiting
        self._records[state.path] = _Record(
            state,
            search.agent.name,
            state.parent or search.above,
            () if waiting is None or isinstance(waiting.operation, Yield) else waiting.operation.calls,
            waiting.point.line if waiting is not None else None,
            search.above is None,
        )
        kind: EventKind = "committed"
        if state.kind == "waiting":
            self.alive += 1
        elif state.kind == "dead":
            kind = "dead"
            self._dead += 1
        else:
            kind = "final"
            if search.above is None:
                self._results.append(state)
        best = self._best_score
        if state.kind != "dead" and state.score is not None and (best is None or state.score > best):
            self._best_score = state.score
        if self._listeners:
            self.report(kind, state, state.replies)

    def report(self, kind: EventKind, state: State | None = None, replies: tuple[Reply, ...] = ()) -> None:
        """Tell who listens."""
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
            agent=self._records[state.path].agent if state else None,
            state=state.id if state else None,
            name=state.name if state else None,
            step=state.parent.name if state and state.parent else None,
            score=state.score if state else None,
            replies=tuple(map(str, replies)),
            tokens_generated=sum(reply.tokens_generated for reply in replies),
            tokens_replayed=sum(reply.tokens_replayed for reply in replies),
            detail=detail,
        )
        for listener in self._listeners:
            listener(event)

    @property
    def results(self) -> list[State]:
        """The final states of the run's own agent, best first."""
        return sorted(self._results, key=by_promise)

    def tree(self) -> SearchTree:
        """All states of all searches."""
        results = self.results
        return SearchTree(
            agent=self._agent.name,
            nodes=[_node(record) for _, record in sorted(self._records.items())],
            best=results[0].id if results else None,
        )


class Search:
    """The states of one agent under its supervisor."""

    def __init__(
        self,
        run: Run,
        agent: Agent[..., Any],
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
        self._root: Path = ()
        self._queue: deque[tuple[State, int]] = deque()
        self._tasks: dict[asyncio.Task[None], State | None] = {}
        self._arrived: deque[Callable[[], None]] = deque()
        self._call: asyncio.Future[None] | None = None
        run.session.check_code(agent.name, agent.program.code_hash)

    def start(self, root: Path, code: Callable[[], Waiting | Ended], score: float | None = None) -> State:
        """The first state, to which `code` leads."""
        self._root = root
        return self._advance(root, None, code, (), score)

    async def explore(self, first: State) -> None:
        """Fire states until the supervisor wants no more; `finals` and `dead` have what came of it."""
        try:
            self._supervisor.init([first])
            self._decide()
            steps = 0
            while True:
                if self._arrived:
                    self._arrived.popleft()()
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
            self._run.slots.leave(self)
            if tasks := list(self._tasks):
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

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
                self._ask(decision)
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
        for task in [task for task, of in self._tasks.items() if of is state]:
            # Out of the books at once: the task may have its answer already.
            del self._tasks[task]
            task.cancel()
        self._run.alive -= state.unfinished if state.fired else 1
        state.closed = True
        state.unstarted = state.unfinished = 0
        state.waiting = None
        self._run.report("dropped", state)

    def _ask(self, ask: Ask) -> None:
        path = (*self._root, -1, *ask.key)
        above = self._run._records[self._root].state

        async def answer() -> None:
            caller = ask.agent.caller(self._run.session, self._caller.meter)
            search = Search(self._run, ask.agent, copy.deepcopy(ask.agent.supervisor), caller, above)
            arguments = ask.agent.bind(*ask.args)
            root = search.start(path, lambda: process.start(ask.agent.program, arguments))
            await search.explore(root)
            ended = min(search.finals or search.dead, key=by_promise, default=None)
            if ended is None:
                raise SupervisorError(
                    f"{ask.agent.supervisor} of agent {ask.agent.name!r} gave all branches up"
                )
            ended.asked = ask
            self._arrived.append(lambda: self._supervisor.commit(ended))

        self._begin(answer(), None)

    # Transitions

    def _launch(self) -> bool:
        """Begin the next firing of the queue; False if there is no slot for it."""
        state, firing = self._queue[0]
        run = self._run
        waiting = state.waiting
        assert waiting is not None
        slots = None if state.sleeping else run.slots
        if slots is not None and not slots.take(self):
            return False
        self._queue.popleft()
        run.fired += 1
        if run.has_listeners:
            run.report("fired", state)
        state.unstarted -= 1
        last = state.closed and not state.unstarted
        if last:
            state.waiting = None
        # The last branch takes the variables themselves, unless they are not the search's to give away: of
        # several branches none may change what the caller holds, too.
        moves = last and (state.fired == 1 or not state.borrowed)
        if not moves:
            waiting = process.fork_branch(waiting, {}, run.outer)
        borrowed = moves and state.borrowed
        transition = Transition(run.session, self._caller, state.path, state.id, firing, run)
        operation = waiting.operation
        assert not isinstance(operation, Yield)
        try:
            answer = operation.perform_now(transition)
        except (Exception, BranchFailed) as error:
            answer = Thrown(error)
        if answer is NOT_NOW:
            self._begin(self._perform(state, waiting, transition, slots, borrowed), state)
            return True
        if slots is not None:
            slots.give()
        self._commit(state, waiting, transition, answer, borrowed)
        self._decide()
        return True

    async def _perform(
        self, state: State, waiting: Waiting, transition: Transition, slots: Slots | None, borrowed: bool
    ) -> None:
        assert not isinstance(waiting.operation, Yield)
        try:
            answer = await waiting.operation.perform(transition)
        except (Exception, BranchFailed) as error:
            answer = Thrown(error)
        finally:
            if slots is not None:
                slots.give()
        if state.sleeping:
            self._supervisor.wake(state)
        self._arrived.append(lambda: self._commit(state, waiting, transition, answer, borrowed))

    def _begin(self, work: Any, state: State | None) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks[task] = state
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        known = self._tasks.pop(task, self) is not self
        if task.cancelled():
            self.notify()
            return
        error = task.exception()
        if not known:
            return
        if error is not None:
            self._arrived.appendleft(lambda: _raise(error))
        self.notify()

    def _commit(
        self, state: State, waiting: Waiting, transition: Transition, answer: Any, borrowed: bool
    ) -> None:
        if not state.unfinished:
            return  # It was dropped when the answer had just come.
        state.unfinished -= 1
        self._run.alive -= 1
        path = (*state.path, transition.firing)
        replies = tuple(transition.replies)
        new = self._advance(path, state, lambda: process.resume(waiting, answer), replies, state.score)
        new.borrowed = borrowed
        self._supervisor.commit(new)

    def _advance(
        self,
        path: Path,
        parent: State | None,
        code: Callable[[], Waiting | Ended],
        replies: tuple[Reply, ...],
        score: float | None,
    ) -> State:
        """Run a stretch of the agent's code and enter the state that it leads to."""
        scope = Scope(self._run.session)
        token = enter(scope)
        try:
            outcome = code()
        except (BranchFailed, BudgetExceeded) as end:
            state = State(path, parent, score=score, kind="dead", failure=str(end), replies=replies)
        except Exception as error:
            where = f"after state {parent.name!r} ({parent.id})" if parent else "before its first await"
            error.add_note(f"raised by agent {self.agent.name!r} {where}")
            raise
        else:
            if scope.score is not None:
                score = scope.score
            if type(outcome) is Waiting:
                operation = outcome.operation
                if isinstance(operation, Yield):
                    value = operation.value
                    state = State(
                        path, parent, score=score, kind="final", waiting=outcome, value=value, replies=replies
                    )
                else:
                    state = State(
                        path,
                        parent,
                        score=score,
                        kind="waiting",
                        waiting=outcome,
                        sleeping=operation.sleeps,
                        replies=replies,
                    )
            else:
                assert isinstance(outcome, Ended)
                state = State(path, parent, score=score, kind="final", value=outcome.value, replies=replies)
        finally:
            leave(token)
        if state.kind == "final":
            self.finals.append(state)
        elif state.kind == "dead":
            self.dead.append(state)
        self._run.enter(self, state)
        return state


class Slots:
    """Transitions that may be under way at once, over all searches of a run."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: dict[Search, None] = {}

    def take(self, search: Search) -> bool:
        """Take a slot; if there is none, `search` is notified when there may be one."""
        if not self._free:
            self._waiting[search] = None
            return False
        self._free -= 1
        return True

    def give(self) -> None:
        """Give a slot back."""
        self._free += 1
        if not self._waiting:
            return
        # All that wait look again, in the order in which they came: the first may not want it any more.
        waiting, self._waiting = self._waiting, {}
        for search in waiting:
            search.notify()

    def leave(self, search: Search) -> None:
        """Stop waiting."""
        self._waiting.pop(search, None)


def _raise(error: BaseException) -> None:
    raise error


def _node(record: _Record) -> TreeNode:
    state = record.state
    status: Status = "expanded" if state.fired else "pruned"
    if state.kind == "final":
        status = "result" if record.of_run else "returned"
    elif state.kind == "dead":
        status = "dead"
    return TreeNode(
        id=state.id,
        parent=record.above.id if record.above else None,
        name=state.name,
        line=record.line,
        agent=record.agent,
        status=status,
        score=state.score,
        replies=[str(reply) for reply in state.replies],
        prompts=[
            "\n\n".join(message.content for message in call.messages) if call.prompt is None else call.prompt
            for call in record.calls
        ],
        fired=state.fired,
        tokens_generated=sum(reply.tokens_generated for reply in state.replies),
        tokens_replayed=sum(reply.tokens_replayed for reply in state.replies),
        failure=state.failure,
        value=repr(state.value) if state.kind == "final" else None,
    )
