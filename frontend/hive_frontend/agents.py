"""The `@agent` decorator, the `Agent` class and `spawn`."""

from __future__ import annotations

import copy
import functools
import inspect
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable
from types import FunctionType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from hive_frontend import telemetry
from hive_frontend.client.contract import Client
from hive_frontend.client.http.client import HttpClient
from hive_frontend.compiler import Program, program_of
from hive_frontend.compiler.flow_graph import FlowGraph
from hive_frontend.operation import Operation, Scope, current_environment, entered, tracked
from hive_frontend.operations import fork
from hive_frontend.operations.budget import Budget, Meter
from hive_frontend.operations.child import Child
from hive_frontend.operations.native import NativeScope
from hive_frontend.operations.transition import Caller, SessionContract
from hive_frontend.search.session import Session
from hive_frontend.supervisors.base import Supervisor
from hive_frontend.supervisors.once import Once
from hive_frontend.wire import check_name

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")


class Agent(Generic[P, R]):
    """An `async def` function that can be searched.

    `run` and `arun` search it under its supervisor, which forks its states and keeps the promising ones. The same
    happens when another agent awaits it, `answer = await helper(question)`, or spawns it. Awaited in a `Session`
    or elsewhere, it runs as an ordinary coroutine, without a search.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        supervisor: Supervisor | None = None,
        model: Client | str | None = None,
        retries: int | None = None,
        timeout: float | None = None,
        budget: Budget | None = None,
    ) -> None:
        if not isinstance(function, FunctionType) or not (
            inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
        ):
            hint = ""
            if isinstance(function, (classmethod, staticmethod, property)):
                hint = f"; write @agent below @{type(function).__name__}"
            raise TypeError(f"@agent decorates an `async def` function or method, not {function!r}{hint}")
        if supervisor is not None and not isinstance(supervisor, Supervisor):
            hint = "()" if isinstance(supervisor, type) else ""
            raise TypeError(f"supervisor must be a Supervisor, not {supervisor!r}{hint and '; add ()'}")
        if retries is not None and (type(retries) is not int or retries < 0):
            raise ValueError(f"retries must be an integer of at least 0, not {retries!r}")
        if timeout is not None and not 0 < timeout < math.inf:
            raise ValueError(f"timeout must be a positive number of seconds, not {timeout!r}")
        if budget is not None and not isinstance(budget, Budget):
            raise TypeError(f"budget must be a Budget, such as Budget(tokens=1000), not {budget!r}")
        self.name = check_name("the name of an agent", function.__name__ if name is None else name)
        self.supervisor: Supervisor = Once() if supervisor is None else supervisor
        self._function: Callable[..., Any] = function
        self._client, self._model = _client_and_model(model)
        self._attempts = None if retries is None else retries + 1
        self._timeout_s = timeout
        self._budget = budget
        self._instance: tuple[Any, ...] = ()
        # Of `function` itself: a decorator that wraps another function may take other arguments than that one.
        self._signature = inspect.signature(function, follow_wrapped=False)
        self.program: Program = program_of(function, self.name)
        self.supervisor.check(self.program.graph)
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]:
        scope = current_environment()
        child: Child[R] = Child(self, (*args,), kwargs)
        if isinstance(scope, Scope):
            return tracked(child.__hive_operation__())
        return self._run_natively(*args, **kwargs)

    def __hive_call__(self, *args: Any, **kwargs: Any) -> Operation[R]:
        """Return the operation that compiled code awaits when it awaits a call of the agent."""
        return Child(self, args, kwargs).__hive_operation__()

    async def _run_natively(self, *args: Any, **kwargs: Any) -> Any:
        if self.is_generator:
            raise TypeError(
                f"agent {self.name} is an async generator and cannot be awaited: use child = spawn(...), and await "
                "child.next()"
            )
        session = current_environment()
        if session is None:
            return await self.call(*args, **kwargs)
        assert isinstance(session, Session)
        attributes = {
            "gen_ai.provider.name": "hive",
            "gen_ai.agent.name": self.name,
            "gen_ai.conversation.id": session.id,
        }
        with (
            entered(NativeScope(session, self.caller(session), session.new_root())),
            telemetry.span("invoke_agent", self.name, attributes),
        ):
            return await self.call(*args, **kwargs)

    @overload
    def __get__(self, instance: None, owner: type) -> Agent[P, R]: ...
    @overload
    def __get__(self: Agent[Concatenate[S, Q], T], instance: S, owner: type[S]) -> Agent[Q, T]: ...
    def __get__(self, instance: Any, owner: type) -> Any:
        """Bind the agent to an instance, if the function is a method."""
        if instance is None:
            return self
        bound = copy.copy(self)
        bound._instance = (instance,)
        return bound

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, and return its coroutine or async generator."""
        return self._function(*self._instance, *args, **kwargs)

    def caller(self, session: SessionContract, around: Meter | None = None) -> Caller:
        """Return the `Caller` for this agent's calls in a session; `around` is the meter of the parent agent."""
        meter = around or session.meter
        if self._budget is not None:
            meter = Meter(self._budget, f"agent {self.name}", meter)
        return Caller(self.name, meter, self._client, self._model, self._timeout_s, self._attempts)

    def bind(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the values of all parameters for a call with these arguments; `TypeError` if they do not match."""
        try:
            bound = self._signature.bind(*self._instance, *args, **kwargs)
        except TypeError as error:
            raise TypeError(f"agent {self.name}{self._signature}: {error}") from None
        bound.apply_defaults()
        return bound.arguments

    def check_keywords(self, positional: int, words: Iterable[str]) -> None:
        """Raise `TypeError` if a keyword given to `run` is also the name of a parameter of the agent."""
        names = [parameter.name for parameter in self.parameters[positional:]]
        for word in words:
            if word in names:
                raise TypeError(
                    f"{word}= is a parameter of both run and agent {self.name}{self._signature}: pass the agent's "
                    "by position, or rename it"
                )

    @property
    def parameters(self) -> list[inspect.Parameter]:
        """The parameters that a call gives, without a bound instance."""
        return [*self._signature.parameters.values()][len(self._instance) :]

    @property
    def is_generator(self) -> bool:
        """Whether it is an async generator: it yields values, and is used with `spawn`."""
        return self.program.is_generator

    @property
    def has_model(self) -> bool:
        """Whether it has its own model."""
        return self._client is not None

    def graph(self) -> FlowGraph:
        """Return the flow graph: the agent's states, and which states can follow each."""
        return self.program.graph

    def source(self) -> str:
        """Return the code that the compiler emitted: one function per state."""
        return self.program.listing()

    def __fork__(self, memo: dict[int, Any]) -> Agent[P, R]:
        if not self._instance:
            return self
        bound = copy.copy(self)
        bound._instance = fork.copy(self._instance, memo)
        return bound

    __deepcopy__ = __fork__

    def __repr__(self) -> str:
        return f"<agent {self.name}{self._signature}>"


def _client_and_model(model: Client | str | None) -> tuple[Client | None, str | None]:
    """Return the client that `model=` means, or else the name of a model at the session's server."""
    if model is None or isinstance(model, Client):
        return model, None
    if not isinstance(model, str):
        raise TypeError(
            "model must be a Client, the URL of a server, or the name of a model there, not "
            f"{type(model).__name__}"
        )
    return (HttpClient(model), None) if "://" in model else (None, model)


class _Decorate:
    """The decorator that `@agent(...)` returns."""

    def __init__(self, **settings: Any) -> None:
        self._settings = settings

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Agent[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, AsyncGenerator[R, Any]], /) -> Agent[P, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Agent[Any, Any]:
        return Agent(function, **self._settings)


@overload
def agent(function: Callable[P, Coroutine[Any, Any, R]], /) -> Agent[P, R]: ...
@overload
def agent(function: Callable[P, AsyncGenerator[R, Any]], /) -> Agent[P, R]: ...
@overload
def agent(
    *,
    supervisor: Supervisor | None = None,
    name: str | None = None,
    model: Client | str | None = None,
    retries: int | None = None,
    timeout: float | None = None,
    budget: Budget | None = None,
) -> _Decorate: ...
def agent(
    function: Callable[..., Any] | None = None,
    /,
    *,
    supervisor: Supervisor | None = None,
    name: str | None = None,
    model: Client | str | None = None,
    retries: int | None = None,
    timeout: float | None = None,
    budget: Budget | None = None,
) -> Agent[Any, Any] | _Decorate:
    """Turn an `async def` function or method into an agent.

        @agent(supervisor=TreeOfThoughts(branch_at="propose", branching=8, breadth=5))
        async def solve(puzzle: str) -> str:
            step = await gen(..., name="propose")
            ...

    `supervisor` decides which of its states fire, and how often; the default is `Once`. `name` identifies the agent
    at the server; the default is the function's name. `model` replaces the run's model for this agent: a `Client`,
    the URL of a server, or the name of a model (or LoRA adapter) at the run's server. `retries` is how often a call
    is retried after a transport error, and `timeout` is the seconds that one call may take; the client sets the
    defaults of both. `budget` limits what each run of the agent spends, including everything that it calls and
    spawns.

    The function may be an async generator, which other agents `spawn`. The decorator compiles it, and raises
    `CompileError` for all unsupported constructs in it.
    """
    decorate = _Decorate(
        supervisor=supervisor, name=name, model=model, retries=retries, timeout=timeout, budget=budget
    )
    return decorate if function is None else decorate(function)


def spawn(agent: Agent[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Child[R]:
    """Create a child of the running agent: `child = spawn(find_context, bug)`. See `Child`.

    `agent` is an `@agent` function: a coroutine function, or an async generator that yields intermediate values.
    It begins to run when it is first awaited.
    """
    if not isinstance(agent, Agent):
        raise TypeError(f"spawn takes an @agent function and its arguments, not {agent!r}")
    return Child(agent, args, kwargs)
