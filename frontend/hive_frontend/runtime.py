"""The runtime: fires the states that the supervisor wants fired, concurrently, until it wants no more."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import copy
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from hive_frontend import environment
from hive_frontend.agent import Agent
from hive_frontend.client.base import Client
from hive_frontend.compiler.program import Outcome, Suspended
from hive_frontend.errors import BranchFailed, NoModelError, SupervisorError
from hive_frontend.events import Event, EventKind, Progress
from hive_frontend.identity import Path
from hive_frontend.reply import Reply
from hive_frontend.run_result import Result, RunResult
from hive_frontend.scope import Scope, entered
from hive_frontend.search_tree import SearchTree, Status, TreeNode
from hive_frontend.session import Session
from hive_frontend.state import State, by_promise
from hive_frontend.supervisors.base import Drop, Fire, Supervisor

R = TypeVar("R")
OnEvent = Callable[[Event], object]


async def arun(
    agent: Agent[..., R],
    /,
    *args: Any,
    model: Client | str | None = None,
    seed: int | None = None,
    supervisor: Supervisor | None = None,
    on_event: OnEvent | None = None,
    max_concurrency: int = 64,
    **kwargs: Any,
) -> RunResult[R]:
    """Search `agent(*args, **kwargs)` under its supervisor.

    `model` is a `Client` or the URL of a server. The same `seed`, with a model that answers the same request
    the same way, gives the same search; without one a seed is drawn, and the result tells which.
    `supervisor` replaces the agent's own for this run. `on_event` is called with every `Event`.
    `max_concurrency` bounds the states in transition at once.

    Branches that `fail` are part of the search. Any other exception in the agent's code, or a model call that
    the server refuses, ends the run: what is in flight is cancelled, and the exception is raised here.
    """
    if not isinstance(agent, Agent):
        raise TypeError(f"run takes an @agent function as its first argument, not {agent!r}")
    if model is None:
        raise NoModelError(
            f"running agent {agent.name!r} needs a model: give model=..., a Client or the URL of a server"
        )
    if supervisor is not None and not isinstance(supervisor, Supervisor):
        raise TypeError(f"supervisor must be a Supervisor, not {supervisor!r}")
    if isinstance(max_concurrency, bool) or not isinstance(max_concurrency, int) or max_concurrency < 1:
        raise ValueError(f"max_concurrency must be an integer of at least 1, not {max_concurrency!r}")
    arguments = agent.bind(*args, **kwargs)
    if supervisor is not None:
        supervisor.check(agent.graph())
    chosen = copy.deepcopy(supervisor or agent.supervisor)
    session = Session(model, seed=seed)
    search = _Search(agent, session, chosen, on_event, max_concurrency)
    async with session:
        await search.run(arguments)
    return search.result()


def run(
    agent: Agent[..., R],
    /,
    *args: Any,
    model: Client | str | None = None,
    seed: int | None = None,
    supervisor: Supervisor | None = None,
    on_event: OnEvent | None = None,
    max_concurrency: int = 64,
    **kwargs: Any,
) -> RunResult[R]:
    """`arun` for code that is not asynchronous.

    Where an event loop is running already, as in a notebook, the search runs in a thread of its own.
    """

    async def search() -> RunResult[R]:
        try:
            return await arun(
                agent,
                *args,
                model=model,
                seed=seed,
                supervisor=supervisor,
                on_event=on_event,
                max_concurrency=max_concurrency,
                **kwargs,
            )
        finally:
            # The event loop ends here, and with it the use of all connections made in it.
            if isinstance(model, Client):
                await model.aclose()

    if not _loop_is_running():
        return asyncio.run(search())
    with concurrent.futures.ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(contextvars.copy_context().run, asyncio.run, search()).result()


def _loop_is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class _Search:
    """One run of one agent."""

    def __init__(
        self,
        agent: Agent[..., Any],
        session: Session,
        supervisor: Supervisor,
        on_event: OnEvent | None,
        max_concurrency: int,
    ) -> None:
        self._agent = agent
        self._session = session
        self._supervisor = supervisor
        self._on_event = on_event
        self._max_concurrency = max_concurrency
        self._states: dict[Path, State] = {}
        self._nodes: dict[Path, TreeNode] = {}
        self._closed: set[Path] = set()
        """States that the supervisor will not fire again."""
        self._unfinished: dict[Path, int] = {}
        """Per state: firings that have not led to a new state yet."""
        self._queue: deque[tuple[State, int]] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._done: asyncio.Queue[asyncio.Task[None]] = asyncio.Queue()
        self._fired = self._alive = self._dead = 0
        self._results: list[State] = []
        self._best_score: float | None = None

    async def run(self, arguments: dict[str, Any]) -> None:
        try:
            root = self._advance(
                self._session.new_root(), None, lambda: self._agent.program.start(arguments), []
            )
            self._supervisor.init([root])
            while True:
                self._decide()
                self._launch()
                if not self._running:
                    break
                task = await self._done.get()
                self._running.discard(task)
                task.result()
        finally:
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)
        self._report("finished")

    # Firing

    def _decide(self) -> None:
        for decision in self._supervisor.fire():
            if not isinstance(decision, (Fire, Drop)):
                raise SupervisorError(f"{self._supervisor}: fire() must give Fire and Drop, not {decision!r}")
            state = decision.state
            if state.kind != "waiting" or state.path in self._closed:
                why = (
                    f"is {state.kind}"
                    if state.kind != "waiting"
                    else "was fired for the last time, or dropped"
                )
                raise SupervisorError(f"{self._supervisor} wants {decision!r}, but that state {why}")
            if isinstance(decision, Drop):
                self._closed.add(state.path)
                if not state.fired:
                    self._alive -= 1
                    self._report("dropped", state)
                self._let_go(state)
                continue
            if decision.times < 1:
                raise SupervisorError(f"{self._supervisor} wants {decision!r}: times must be at least 1")
            if decision.last:
                self._closed.add(state.path)
            if not state.fired:
                self._alive -= 1
            self._unfinished[state.path] = self._unfinished.get(state.path, 0) + decision.times
            self._alive += decision.times
            for _ in range(decision.times):
                self._queue.append((state, state.fired))
                state.fired += 1

    def _launch(self) -> None:
        while self._queue and len(self._running) < self._max_concurrency:
            state, firing = self._queue.popleft()
            self._fired += 1
            self._report("fired", state)
            task = asyncio.create_task(self._transition(state, firing))
            self._running.add(task)
            task.add_done_callback(self._done.put_nowait)

    async def _transition(self, state: State, firing: int) -> None:
        suspended = state.suspended
        assert suspended is not None
        operation = suspended.operation
        replies = await self._session.perform(
            operation, agent=self._agent.name, path=state.path, firing=firing
        )
        program = self._agent.program
        if state.path in self._closed and state.fired == 1:
            variables, dialogues = environment.move(suspended)
        else:
            variables, dialogues = environment.fork(program, suspended)
        self._unfinished[state.path] -= 1
        self._let_go(state)

        def go_on() -> Outcome:
            return program.resume(suspended.point, variables, operation.settle(replies, dialogues))

        self._alive -= 1
        self._supervisor.commit(self._advance((*state.path, firing), state, go_on, replies))

    def _let_go(self, state: State) -> None:
        """Free the variables of a state from which nothing more will start."""
        if state.path in self._closed and not self._unfinished.get(state.path):
            state.suspended = None

    # New states

    def _advance(
        self, path: Path, parent: State | None, code: Callable[[], Outcome], replies: list[Reply]
    ) -> State:
        """Run a stretch of the agent's code and enter the state that it leads to."""
        scope = Scope()
        outcome: Outcome | None = None
        failure = None
        try:
            with entered(scope):
                outcome = code()
        except BranchFailed as failed:
            failure = failed.reason
        except Exception as error:
            where = f"after state {parent.name!r} ({parent.id})" if parent else "before its first call"
            error.add_note(f"raised by agent {self._agent.name!r} {where}")
            raise
        inherited = parent.score if parent else None
        state = State(
            path,
            parent,
            score=inherited if scope.score is None else scope.score,
            suspended=outcome if isinstance(outcome, Suspended) else None,
            value=None if outcome is None or isinstance(outcome, Suspended) else outcome.value,
            failure=failure,
        )
        self._enter(state, replies)
        return state

    def _enter(self, state: State, replies: list[Reply]) -> None:
        self._states[state.path] = state
        generated = sum(reply.tokens_generated for reply in replies)
        replayed = sum(reply.tokens_replayed for reply in replies)
        calls = state.suspended.operation.calls if state.suspended else ()
        node = self._nodes[state.path] = TreeNode(
            id=state.id,
            parent=state.parent.id if state.parent else None,
            name=state.name,
            line=state.suspended.point.line if state.suspended else None,
            status="pruned",
            score=state.score,
            replies=[str(reply) for reply in replies],
            prompts=[
                "\n\n".join(message.content for message in call.messages)
                if call.prompt is None
                else call.prompt
                for call in calls
            ],
            fired=0,
            tokens_generated=generated,
            tokens_replayed=replayed,
            failure=state.failure,
            value=repr(state.value) if state.kind == "final" else None,
        )
        kind: EventKind = "committed"
        if state.kind == "waiting":
            self._alive += 1
        elif state.kind == "final":
            kind = "final"
            self._results.append(state)
        else:
            kind = "dead"
            self._dead += 1
        if (
            state.kind != "dead"
            and state.score is not None
            and (self._best_score is None or state.score > self._best_score)
        ):
            self._best_score = state.score
        self._report(kind, state, node)

    def _report(self, kind: EventKind, state: State | None = None, node: TreeNode | None = None) -> None:
        if self._on_event is None:
            return
        totals = self._session.totals
        progress = Progress(
            fired=self._fired,
            alive=self._alive,
            dead=self._dead,
            results=len(self._results),
            best_score=self._best_score,
            requests=totals.requests,
            tokens_generated=totals.tokens_generated,
            tokens_replayed=totals.tokens_replayed,
            elapsed_s=self._session.elapsed,
        )
        event = Event(
            kind=kind,
            progress=progress,
            state=state.id if state else None,
            name=state.name if state else None,
            step=state.parent.name if state and state.parent else None,
            score=state.score if state else None,
            replies=tuple(node.replies) if node else (),
            tokens_generated=node.tokens_generated if node else 0,
            tokens_replayed=node.tokens_replayed if node else 0,
            detail=(node.failure or node.value) if node else None,
        )
        self._on_event(event)

    # The outcome

    def result(self) -> RunResult[Any]:
        ranked = sorted(self._results, key=by_promise)
        tree = SearchTree(
            agent=self._agent.name,
            nodes=[self._finished_node(state) for _, state in sorted(self._states.items())],
            best=ranked[0].id if ranked else None,
        )
        return RunResult(
            results=tuple(Result(state.value, state.score, state.id) for state in ranked),
            tree=tree,
            totals=self._session.totals,
            states_fired=self._fired,
            seed=self._session.seed,
            session=self._session.id,
        )

    def _finished_node(self, state: State) -> TreeNode:
        status: Status = "expanded" if state.fired else "pruned"
        if state.kind == "final":
            status = "result"
        elif state.kind == "dead":
            status = "dead"
        return self._nodes[state.path].model_copy(update={"status": status, "fired": state.fired})
