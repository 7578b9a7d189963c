"""Running agents: `arun`, and `run` for synchronous code."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import copy
import functools
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import ExitStack, suppress
from contextvars import ContextVar
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    ParamSpec,
    TypedDict,
    TypeVar,
    TypeVarTuple,
    Unpack,
    cast,
    overload,
)

from hive_frontend.agents import Agent
from hive_frontend.client.contract import Client
from hive_frontend.client.http.transport import Transport
from hive_frontend.errors import NoModelError
from hive_frontend.operations.budget import Budget
from hive_frontend.runs.log import FileLog
from hive_frontend.runs.questions import OnQuestion
from hive_frontend.runs.store import RunStore
from hive_frontend.search.events import Piece
from hive_frontend.search.fingerprint import shown
from hive_frontend.search.journal import Journal
from hive_frontend.search.record import OnError, OnEvent, StopAt, result_of
from hive_frontend.search.run import Run
from hive_frontend.search.run_result import Result, RunResult
from hive_frontend.search.session import Session
from hive_frontend.supervisors.base import Supervisor
from hive_frontend.views.trace import traced_to

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
X = TypeVar("X")
Ts = TypeVarTuple("Ts")
OnPiece = Callable[[Piece], object]
File = str | os.PathLike[str]


_started: ContextVar[Callable[[Run], object] | None] = ContextVar("hive_started", default=None)
"""Is called with the run that `arun` starts, so that its caller can stop it."""


async def started_by(work: Coroutine[Any, Any, T], started: Callable[[Run], object]) -> T:
    """Await a call of `arun`, and call `started` with its run."""
    _started.set(started)
    return await work


class RunSettings(TypedDict, total=False):
    """The settings of `arun`, `run` and `stream`, for type checkers."""

    model: Client | str | None
    seed: int | None
    supervisor: Supervisor | None
    budget: Budget | None
    on_event: OnEvent | None
    on_piece: OnPiece | None
    on_error: OnError
    max_concurrency: int
    stop_at: StopAt | None
    trace: File | None
    checkpoint: File | None
    replay: File | None
    store: RunStore | File | None
    run_id: str | None
    on_question: OnQuestion | None


# Keywords of `arun` cannot be typed beside `**kwargs: P.kwargs`. So the types know three ways to call it: with
# the agent's arguments alone; with positional arguments, then settings; and with fewer positional arguments, then
# the agent's others and settings by keyword, which are not checked.
@overload
def arun(agent: Agent[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, RunResult[R]]: ...
@overload
def arun(
    agent: Callable[[*Ts], Awaitable[R]], /, *args: *Ts, **settings: Unpack[RunSettings]
) -> Coroutine[Any, Any, RunResult[R]]: ...
@overload
def arun(
    agent: Callable[Concatenate[X, ...], Awaitable[R]], /, **kwargs: Any
) -> Coroutine[Any, Any, RunResult[R]]: ...
@overload
def arun(
    agent: Callable[Concatenate[A, X, ...], Awaitable[R]], a: A, /, **kwargs: Any
) -> Coroutine[Any, Any, RunResult[R]]: ...
@overload
def arun(
    agent: Callable[Concatenate[A, B, X, ...], Awaitable[R]], a: A, b: B, /, **kwargs: Any
) -> Coroutine[Any, Any, RunResult[R]]: ...
async def arun(  # type: ignore[misc]  # mypy does not match it with `*args: *Ts`.
    agent: Any,
    /,
    *args: Any,
    model: Client | str | None = None,
    seed: int | None = None,
    supervisor: Supervisor | None = None,
    budget: Budget | None = None,
    on_event: OnEvent | None = None,
    on_piece: OnPiece | None = None,
    on_error: OnError = "raise",
    max_concurrency: int = 64,
    stop_at: StopAt | None = None,
    trace: File | None = None,
    checkpoint: File | None = None,
    replay: File | None = None,
    store: RunStore | File | None = None,
    run_id: str | None = None,
    on_question: OnQuestion | None = None,
    **kwargs: Any,
) -> RunResult[Any]:
    """Search `agent(*args, **kwargs)` under its supervisor.

    `model` is a `Client` or the URL of a server. The same `seed` gives the same search, if the model always answers
    the same request in the same way; without a `seed` one is drawn, and the result has it. `supervisor` replaces the
    agent's own for this run. `budget` limits what the run spends. `max_concurrency` limits the states that fire at
    the same time, and the requests in flight.

    `stop_at` is a score, or a function of a `Result`: the run ends with the first result that scores at least that
    much, or for which the function returns true, and cancels its requests in flight. Results that are only offered
    (see `score`) count, too.

    `on_event` is called with every `Event`, and `on_piece` with every `Piece` of text as models write it. `trace`
    is a file to which every event is written as a line of JSON. `checkpoint` is a file to which every answer of a
    model or tool is written; if it exists, the run is resumed from it, even if the process was killed, unless the
    program has changed since (`JournalError`). `replay` is such a file, from which the run is repeated offline,
    without a model. `store` is a SQLite file with the checkpoints of many runs, or a `RunStore`; the run with the id
    `run_id` is begun or resumed there (`JournalError` if it is being executed), and without one a new run.

    `on_question` is called with every `Question` of `ask_human`, and returns the answer, or None to leave it open. If
    all branches that are left wait for people, the run ends with these `questions`.

    Branches that `fail` or run out of budget are part of the search. Any other exception that the agent does not
    catch ends the run, such as a bug in its code or a model call that the server refuses: calls in flight are
    cancelled, and the exception is raised here. With `on_error="drop"`, a refused model call, an answer that cannot
    be read (`InvalidAnswer`) or a tool that times out ends only its branch; the first such error is raised if the run
    has no result.
    """
    if not isinstance(agent, Agent):
        raise TypeError(f"run takes an @agent function as its first argument, not {agent!r}")
    if agent.is_generator:
        raise TypeError(
            f"agent {agent.name} is an async generator and cannot be run: spawn it in another agent, and run that one"
        )
    if model is None and not agent.has_model and replay is None:
        raise NoModelError(
            f"agent {agent.name!r} needs a model to run: pass model=..., a Client or the URL of a server"
        )
    if supervisor is not None and not isinstance(supervisor, Supervisor):
        raise TypeError(f"supervisor must be a Supervisor, not {supervisor!r}")
    if on_error not in ("raise", "drop"):
        raise ValueError(f"on_error must be 'raise' or 'drop', not {on_error!r}")
    is_score = isinstance(stop_at, (int, float)) and not isinstance(stop_at, bool) and stop_at == stop_at
    if stop_at is not None and not is_score and not callable(stop_at):
        raise TypeError(f"stop_at must be a score or a function of a Result, not {stop_at!r}")
    if sum(place is not None for place in (checkpoint, replay, store)) > 1:
        raise ValueError(
            "checkpoint, store and replay exclude each other: checkpoint records or resumes a run in a file of its "
            "own, store in a file of many runs, and replay repeats a run"
        )
    if run_id is not None and store is None:
        raise ValueError(f"run_id={run_id!r} names a run in a store: give store=..., too")
    own: dict[str, object] = {
        "model": model,
        "seed": seed,
        "supervisor": supervisor,
        "budget": budget,
        "on_event": on_event,
    }
    own |= {"on_piece": on_piece, "trace": trace, "checkpoint": checkpoint, "replay": replay}
    own |= {"store": store, "run_id": run_id, "on_question": on_question, "stop_at": stop_at}
    agent.check_keywords(len(args), [word for word, given in own.items() if given is not None])
    arguments = agent.bind(*args, **kwargs)
    if supervisor is not None:
        supervisor.check(agent.graph())
    chosen = copy.deepcopy(supervisor or agent.supervisor)
    listeners = [] if on_event is None else [on_event]
    with ExitStack() as files:
        journal = log = None
        if store is not None:
            kept = store if isinstance(store, RunStore) else RunStore(store)
            log = files.enter_context(kept.log(run_id, agent.name))
            journal = files.enter_context(Journal(log))
        elif file := checkpoint or replay:
            offline = replay is not None
            journal = files.enter_context(Journal(FileLog(file, offline=offline), offline=offline))
        if journal is not None:
            seed = journal.seed if seed is None else seed
        if trace is not None:
            listeners.append(files.enter_context(traced_to(trace)))
        session = Session(
            model,
            seed=seed,
            budget=budget,
            journal=journal,
            on_piece=on_piece,
            on_question=on_question,
            max_concurrency=max_concurrency,
        )
        if journal is not None:
            journal.open(
                {
                    "agent": agent.name,
                    "arguments": {name: shown(value) for name, value in arguments.items()},
                    "seed": session.seed,
                    "supervisor": repr(chosen),
                }
            )
        search = Run(agent, session, chosen, listeners, max_concurrency, on_error, stop_at)
        if (started := _started.get()) is not None:
            # Not for runs that a tool of this one starts.
            _started.set(None)
            started(search)
        async with session:
            await search.search(arguments)
        if log is not None:
            outcome = repr(search.results[0].value) if search.results else None
            log.finish(outcome, search.questions, stopped=search.stopped)
    best = search.best_unfinished
    return RunResult(
        results=tuple(result for state in search.results if (result := result_of(state)) is not None),
        totals=session.totals,
        states_fired=search.fired,
        seed=session.seed,
        session=session.id,
        questions=search.questions,
        run_id=None if log is None else log.run,
        stopped=search.stopped,
        _draw=search.tree,
        _unfinished=None if best is None else Result(None, best.score, best.id, finished=False),
    )


def synchronous(work: Callable[P, Coroutine[Any, Any, T]], *, stops: bool = False) -> Callable[P, T]:
    """Return `run` for `arun`: it takes the arguments of `work`.

    Ctrl-C cancels the work; if it is a run that `stops`, it ends it with what it has found.
    """

    @functools.wraps(work, assigned=("__module__",))
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        running: list[asyncio.Task[Any]] = []

        async def search() -> T:
            if (task := asyncio.current_task()) is not None:
                running.append(task)
            try:
                return await (_stoppable if stops else _awaited)(work(*args, **kwargs))
            finally:
                # The event loop ends here, so close all connections made in it, including those of agents' own clients.
                if isinstance(model := kwargs.get("model"), Client):
                    await model.aclose()
                await Transport.close_all()
                running.clear()

        def in_new_loop() -> T:
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                return runner.run(search())

        if not _loop_is_running():
            return in_new_loop()
        return _in_thread(in_new_loop, running)

    run.__name__ = run.__qualname__ = work.__name__.removeprefix("a")
    run.__doc__ = (
        f"Run `{work.__name__}` from synchronous code, on uvloop's event loop if uvloop is installed.\n\n"
        "If an event loop is already running, as in a notebook, the work is done in a separate thread."
    )
    if stops:
        run.__doc__ += (
            " Ctrl-C stops the run,\nwhich then returns what it has found, or raises `KeyboardInterrupt`."
        )
    return run


async def _awaited(work: Coroutine[Any, Any, T]) -> T:
    return await work


async def _stoppable(work: Coroutine[Any, Any, T]) -> T:
    """Await a call of `arun`. Ctrl-C, which cancels this task, stops the run."""
    runs: list[Run] = []
    task = asyncio.create_task(started_by(work, runs.append))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not runs or task.done():
            task.cancel()
            await asyncio.wait([task])
            raise
        runs[0].stop()
        await asyncio.wait([task])
        if cast("RunResult[Any]", task.result()).best is None:
            raise
        return task.result()


if TYPE_CHECKING:

    @overload
    def run(agent: Agent[P, R], /, *args: P.args, **kwargs: P.kwargs) -> RunResult[R]: ...
    @overload
    def run(
        agent: Callable[[*Ts], Awaitable[R]], /, *args: *Ts, **settings: Unpack[RunSettings]
    ) -> RunResult[R]: ...
    @overload
    def run(agent: Callable[Concatenate[X, ...], Awaitable[R]], /, **kwargs: Any) -> RunResult[R]: ...
    @overload
    def run(
        agent: Callable[Concatenate[A, X, ...], Awaitable[R]], a: A, /, **kwargs: Any
    ) -> RunResult[R]: ...
    @overload
    def run(
        agent: Callable[Concatenate[A, B, X, ...], Awaitable[R]], a: A, b: B, /, **kwargs: Any
    ) -> RunResult[R]: ...
    def run(agent: Any, /, *args: Any, **kwargs: Any) -> RunResult[Any]: ...  # type: ignore[misc]

else:
    run = synchronous(arun, stops=True)


def _in_thread(work: Callable[[], R], running: list[asyncio.Task[Any]]) -> R:
    """Do work in a new thread. Ctrl-C, which reaches the waiting thread, cancels the tasks `running` there."""
    outcome: concurrent.futures.Future[R] = concurrent.futures.Future()

    def thread() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=contextvars.copy_context().run, args=(thread,), daemon=True).start()
    try:
        return outcome.result()
    except KeyboardInterrupt:
        for task in running:
            with suppress(RuntimeError):  # The task and its loop may just have ended.
                task.get_loop().call_soon_threadsafe(task.cancel)
        concurrent.futures.wait([outcome])
        if outcome.exception() is None:
            return outcome.result()
        raise


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _loop_is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
