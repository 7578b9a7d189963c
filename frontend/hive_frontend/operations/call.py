"""Model calls with `gen`, and concurrent operations with `gather`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from types import CoroutineType, NoneType
from typing import Any, TypeVar, Unpack, cast, overload

from hive_frontend.client.contract import AnswerSettings, Sampling, SamplingSettings, sampling_of
from hive_frontend.client.dialogue import Dialogue, as_messages
from hive_frontend.client.messages import Message
from hive_frontend.client.reply import Reply
from hive_frontend.client.structured import parse_as
from hive_frontend.client.tools import ToolList, Tools, checked_choice, model_tools
from hive_frontend.errors import JournalError, Suspended
from hive_frontend.operation import NOT_NOW, Call, NotNow, Operation, tracked
from hive_frontend.operations.fork import Memo, copy
from hive_frontend.operations.model_call import ModelCall, checked_sample
from hive_frontend.operations.transition import Transition
from hive_frontend.wire import check_name

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
T = TypeVar("T")
Prompt = str | Dialogue | Sequence[Message | tuple[str, str] | dict[str, str]]


@dataclass(slots=True, eq=False, repr=False)
class Gen(ModelCall[Any]):
    """A model call. Its prompt is fixed when the call is created: appending to a dialogue later does not change it."""

    schema: Any = None
    """The type as which the answer is parsed; None for plain text."""

    async def perform(self, transition: Transition) -> Any:
        return self._settle(await transition.session.call(self, transition), transition)

    def perform_now(self, transition: Transition) -> Any:
        reply = transition.session.call_now(self, transition)
        return NOT_NOW if reply is None else self._settle(reply, transition)

    def _settle(self, reply: Reply, transition: Transition) -> Any:
        """Record the answer in the transition and in the dialogue, and return the result of the `await`."""
        transition.replies = (reply,)
        if self.dialogue is not None:
            if transition.parts:
                transition.answers = ((self.dialogue, reply),)
            else:
                self.dialogue.assistant(reply)
        return reply if self.schema is None else parse_as(self.schema, reply)

    def __fork__(self, memo: Memo) -> Gen:
        if self.dialogue is None:
            return self
        same = (self.messages, self.prompt, self.sampling, self.name, self.agent, self.sample)
        return Gen(*same, copy(self.dialogue, memo), self.tools, self.schema)


def _first_failed(tasks: list[asyncio.Task[Any]]) -> int:
    """Return the index of the first task that has failed; the number of tasks if none has.

    One that waits for a person has not failed.
    """
    for place, task in enumerate(tasks):
        if task.done() and (task.cancelled() or not isinstance(task.exception(), (NoneType, Suspended))):
            return place
    return len(tasks)


class Gather(Operation[list[Any]]):
    """Several operations, performed concurrently as parts of one transition."""

    __slots__ = ("_done", "name", "parts", "return_exceptions", "sleeps")

    def __init__(
        self, parts: tuple[Operation[Any], ...], name: str | None = None, return_exceptions: bool = False
    ) -> None:
        self.parts = parts
        self.name = name
        self.return_exceptions = return_exceptions
        self.sleeps = any(part.sleeps for part in parts)
        self._done: list[tuple[Transition, Any]] = []
        """The first parts, which `perform_now` performed before it reached one that must wait."""

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(call for part in self.parts for call in part.calls)

    async def perform(self, transition: Transition) -> list[Any]:
        """Return the results in the order of the parts.

        If several parts fail, the error of the first in this order is raised, whichever fails first in time: a
        failed part cancels those after it, and waits for those before it.
        """
        done, self._done = self._done, []
        inner = [transition.of_part(number, self.name) for number in range(len(done), len(self.parts))]
        tasks = [
            asyncio.ensure_future(self._perform_part(part, at))
            for part, at in zip(self.parts[len(done) :], inner, strict=True)
        ]
        try:
            pending = set(tasks)
            while pending:
                _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_EXCEPTION)
                failed = _first_failed(tasks)
                for task in tasks[failed + 1 :]:
                    task.cancel()
        finally:
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
        failed = _first_failed(tasks)
        errors = [task.exception() for task in tasks[:failed]]
        if waiting := [error for error in errors if isinstance(error, Suspended)]:
            raise Suspended([question for error in waiting for question in error.questions])
        # Raises the error of the failed part. Results of the parts after it are dropped.
        results = [task.result() for task in tasks[: failed + 1]]
        return self._settle([*done, *zip(inner, results, strict=True)], transition)

    async def _perform_part(self, part: Operation[Any], transition: Transition) -> Any:
        if not self.return_exceptions:
            return await part.perform(transition)
        session = transition.session
        if (known := session.recall_error(part, transition)) is not None:
            return known
        session.asked(part, transition)  # Before `perform`, which may change the part.
        try:
            return await part.perform(transition)
        except Exception as error:
            if isinstance(error, JournalError) or (transition.run is not None and transition.run.ends(error)):
                raise
            session.keep_error(part, transition, error)
            return error

    def perform_now(self, transition: Transition) -> list[Any] | NotNow:
        if self.return_exceptions:
            return NOT_NOW
        self._done = []
        for number, part in enumerate(self.parts):
            inner = transition.of_part(number, self.name)
            result = part.perform_now(inner)
            if result is NOT_NOW:
                return NOT_NOW
            self._done.append((inner, result))
        done, self._done = self._done, []
        return self._settle(done, transition)

    def _settle(self, done: list[tuple[Transition, Any]], transition: Transition) -> list[Any]:
        """Record all answers in the order of the parts, whichever arrived first, and return the results."""
        transition.replies = tuple(reply for inner, _ in done for reply in inner.replies)
        transition.results = tuple(result for inner, _ in done for result in inner.results)
        transition.answers = tuple(answer for inner, _ in done for answer in inner.answers)
        if not transition.parts:
            for dialogue, reply in transition.answers:
                dialogue.assistant(reply)
        return [result for _, result in done]

    def __fork__(self, memo: Memo) -> Gather:
        parts = tuple(part.__fork__(memo) for part in self.parts)
        return Gather(parts, self.name, self.return_exceptions)


@overload
def gen(
    prompt: Prompt,
    *,
    schema: type[T],
    name: str | None = ...,
    agent: str | None = ...,
    raw: bool = ...,
    sample: int | None = ...,
    **settings: Unpack[SamplingSettings],
) -> Operation[T]: ...
@overload
def gen(
    prompt: Prompt,
    *,
    name: str | None = ...,
    agent: str | None = ...,
    raw: bool = ...,
    sample: int | None = ...,
    tools: ToolList | Tools | None = ...,
    tool_choice: str = ...,
    **settings: Unpack[AnswerSettings],
) -> Operation[Reply]: ...
def gen(
    prompt: Prompt,
    *,
    name: str | None = None,
    agent: str | None = None,
    schema: Any = None,
    raw: bool = False,
    sample: int | None = None,
    tools: ToolList | Tools | None = None,
    tool_choice: str = "auto",
    **settings: Unpack[AnswerSettings],
) -> Operation[Any]:
    """Call the model: `text = await gen("Name a prime.")`.

    `prompt` is a string (one user turn), a list of messages, or a `Dialogue`, to which the answer is appended as
    the next turn. With `raw=True` it is a string that the model continues, without a chat template.

    `name` names the state that ends in this call. Supervisors refer to states by name, so it must be a literal.
    `agent` attributes the call to an agent other than the running one. The settings are `max_tokens` (256),
    `temperature`, `top_p`, `top_k` and `stop`; those left at None are the server's choice. `regex`, `json_schema`,
    `choices` and `schema` constrain the answer; give at most one of them. With `schema` (a pydantic model, or any other
    type that pydantic supports) the answer is an instance of it instead of text; `InvalidAnswer` is raised if the text
    cannot be parsed, for example because it was cut off at `max_tokens`.
    `sample` overrides the sample number that is sent to the server; the default is the number of the state's firing.

    `tools` are functions that the model may call; `Reply.tool_calls` has the calls. `tool_choice` is `"auto"`,
    `"required"`, `"none"`, or the name of the tool that the model must call. `act` also makes the calls.
    """
    if raw and not isinstance(prompt, str):
        raise TypeError(f"with raw=True the prompt must be a string, not {type(prompt).__name__}")
    sampling = sampling_of(schema, **settings)
    # Not `tracked`, which is a price at every step of a search: the compiler knows `gen` where it sees it.
    return Gen(
        () if raw else as_messages(prompt),
        str(prompt) if raw else None,
        sampling,
        name,
        None if agent is None else check_name("agent", agent),
        checked_sample(sample),
        prompt if isinstance(prompt, Dialogue) else None,
        None if tools is None else _offered(tools, tool_choice, sampling, schema, raw),
        schema,
    )


def _offered(
    tools: ToolList | Tools, choice: str, sampling: Sampling, schema: Any, raw: bool
) -> Tools | None:
    if raw or schema is not None or sampling.json_schema is not None or sampling.grammar is not None:
        raise ValueError(
            "tools exclude raw, regex, json_schema, choices and schema; act(prompt, tools=..., schema=...) has typed "
            "answers"
        )
    if not isinstance(tools, Tools):
        schemas = tuple(each.schema for each in model_tools(tools))
        tools = Tools(schemas, checked_choice(choice, [each.name for each in schemas]))
    return tools if tools.schemas else None


# As for `asyncio.gather`, the types say tuple for a few parts, so that each keeps its type.
@overload
def gather(part: Awaitable[A], /, *, name: str | None = ...) -> Operation[list[A]]: ...
@overload
def gather(a: Awaitable[A], b: Awaitable[B], /, *, name: str | None = ...) -> Operation[tuple[A, B]]: ...
@overload
def gather(
    a: Awaitable[A], b: Awaitable[B], c: Awaitable[C], /, *, name: str | None = ...
) -> Operation[tuple[A, B, C]]: ...
@overload
def gather(
    a: Awaitable[A], b: Awaitable[B], c: Awaitable[C], d: Awaitable[D], /, *, name: str | None = ...
) -> Operation[tuple[A, B, C, D]]: ...
@overload
def gather(*parts: Awaitable[T], name: str | None = ...) -> Operation[list[T]]: ...
@overload
def gather(
    *parts: Awaitable[T], name: str | None = ..., return_exceptions: bool
) -> Operation[list[T | Exception]]: ...
def gather(
    *parts: Awaitable[Any], name: str | None = None, return_exceptions: bool = False
) -> Operation[Any]:
    """Perform several operations concurrently: `a, b = await gather(gen("..."), child.next())`.

    All belong to one transition, which leads to one next state. Results are in the order of the arguments, which
    are calls of `gen`, `tool`, `choose`, of agents, of a child's `next` and `resume`, or children themselves. Without
    a `name` the state takes the common name of its calls. With `return_exceptions` an exception that a part raises
    takes the place of its result.
    """
    operations = [as_operation(part) for part in parts]
    for position, (part, operation) in enumerate(zip(parts, operations, strict=True)):
        if isinstance(part, CoroutineType):
            helper = part.__name__
            for each in parts:
                if isinstance(each, CoroutineType):
                    each.close()
            raise TypeError(
                f"argument {position} of gather is a coroutine of {helper}, and gather cannot run the awaits in it "
                f"concurrently: write tool({helper}, ...), which runs it as one step, make it an @agent, or await it "
                "separately"
            )
        if operation is None:
            raise TypeError(
                f"gather takes calls of gen, tool and the like, but argument {position} is a "
                f"{type(part).__name__}; write gather(gen(...), gen(...)), or gather(*calls) for a list"
            )
    found = cast(list[Operation[Any]], operations)
    for position, operation in enumerate(found):
        if any(operation is other or _shares_child(operation, other) for other in found[:position]):
            raise ValueError(
                f"argument {position} of gather is the same operation, or uses the same child, as an earlier "
                "argument; await them one after the other, or create another one"
            )
    dialogues = [id(part.dialogue) for part in found if isinstance(part, Gen) and part.dialogue is not None]
    if len(set(dialogues)) < len(dialogues):
        raise ValueError(
            "two calls of one gather continue the same dialogue, which can take only one answer at a time; "
            "give each call its own dialogue.copy()"
        )
    return tracked(Gather(tuple(found), name, return_exceptions))


def _shares_child(one: Operation[Any], other: Operation[Any]) -> bool:
    child = getattr(one, "child", None)
    return child is not None and child is getattr(other, "child", None)


def as_operation(value: object) -> Operation[Any] | None:
    """Return the operation that `await value` performs; None if `value` is not an operation."""
    if isinstance(value, Operation):
        return value
    convert = getattr(value, "__hive_operation__", None)
    return None if convert is None else cast(Operation[Any], convert())
