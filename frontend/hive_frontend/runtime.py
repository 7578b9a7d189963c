"""Running agents: `arun`, and `run` for synchronous code."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import copy
import functools
import os
import threading
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, suppress
from typing import Any, ParamSpec, TypeVar, cast

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
from hive_frontend.search.record import OnError, OnEvent
from hive_frontend.search.run import Run
from hive_frontend.search.run_result import Result, RunResult
from hive_frontend.search.session import Session
from hive_frontend.supervisors.base import Supervisor
from hive_frontend.views.trace import traced_to

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
OnPiece = Callable[[Piece], object]
File = str | os.PathLike[str]


async def arun(
    agent: Agent[..., R],
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
    trace: File | None = None,
    checkpoint: File | None = None,
    replay: File | None = None,
    store: RunStore | File | None = None,
    run_id: str | None = None,
    on_question: OnQuestion | None = None,
    **kwargs: Any,
) -> RunResult[R]:
    """Search `agent(*args, **kwargs)` under its supervisor.

    `model` is a `Client` or the URL of a server. The same `seed` gives the same search, if the model always answers
    the same request in the same way; without a `seed` one is drawn, and the result has it. `supervisor` replaces the
    agent's own for this run. `budget` limits what the run spends. `max_concurrency` limits the states that fire at
    the same time, and the requests in flight.

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
    own |= {"store": store, "run_id": run_id, "on_question": on_question}
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
        search = Run(agent, session, chosen, listeners, max_concurrency, on_error)
        async with session:
            await search.search(arguments)
        if log is not None:
            log.finish(repr(search.results[0].value) if search.results else None, search.questions)
    best = search.best_unfinished
    return RunResult(
        results=tuple(Result(state.value, state.score, state.id) for state in search.results),
        totals=session.totals,
        states_fired=search.fired,
        seed=session.seed,
        session=session.id,
        questions=search.questions,
        run_id=None if log is None else log.run,
        _draw=search.tree,
        _unfinished=None if best is None else Result(cast(R, None), best.score, best.id, finished=False),
    )


def synchronous(work: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Return `run` for `arun`: it takes the arguments of `work`."""

    @functools.wraps(work, assigned=("__module__",))
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        running: list[asyncio.Task[Any]] = []

        async def search() -> T:
            if (task := asyncio.current_task()) is not None:
                running.append(task)
            try:
                return await work(*args, **kwargs)
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
    return run


run = synchronous(arun)


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
