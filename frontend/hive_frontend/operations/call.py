"""What agent code asks a model: `gen` for one answer, `gather` for several things at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from types import CoroutineType
from typing import Any, TypeVar, cast, overload

from hive_frontend.client.contract import Sampling, schema_text
from hive_frontend.client.dialogue import Dialogue, as_messages
from hive_frontend.client.messages import Message
from hive_frontend.client.reply import Reply
from hive_frontend.client.structured import parse_as, schema_of
from hive_frontend.errors import JournalError
from hive_frontend.operation import NOT_NOW, Call, NotNow, Operation, to_be_awaited
from hive_frontend.operations.fork import Memo, copy
from hive_frontend.operations.model_call import ModelCall, checked_sample, sampling_of
from hive_frontend.operations.transition import Transition
from hive_frontend.wire import check_name

T = TypeVar("T")
Prompt = str | Dialogue | Sequence[Message | tuple[str, str] | dict[str, str]]


class Gen(ModelCall[Any]):
    """A call for an answer. The prompt is fixed when the call is described; a dialogue that grows later does not
    change it."""

    __slots__ = ("schema",)

    def __init__(
        self,
        messages: tuple[Message, ...],
        prompt: str | None,
        sampling: Sampling,
        name: str | None = None,
        agent: str | None = None,
        sample: int | None = None,
        dialogue: Dialogue | None = None,
        schema: Any = None,
    ) -> None:
        super().__init__(messages, prompt, sampling, name, agent, sample, dialogue)
        self.schema = schema
        """The type that the answer is read as; None for plain text."""

    async def perform(self, transition: Transition) -> Any:
        return self._settle(await transition.session.call(self, transition), transition)

    def perform_now(self, transition: Transition) -> Any:
        reply = transition.session.call_now(self, transition)
        return NOT_NOW if reply is None else self._settle(reply, transition)

    def _settle(self, reply: Reply, transition: Transition) -> Any:
        """Take the answer: into the dialogue and into the books; returns what the awaiting code gets."""
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
        dialogue = copy(self.dialogue, memo)
        return Gen(
            self.messages,
            self.prompt,
            self.sampling,
            self.name,
            self.agent,
            self.sample,
            dialogue,
            self.schema,
        )


def _first_failed(tasks: list[asyncio.Task[Any]]) -> int:
    """The place of the first task that has failed by itself; behind the last one if there is none."""
    for place, task in enumerate(tasks):
        if task.done() and (task.cancelled() or task.exception() is not None):
            return place
    return len(tasks)


class Gather(Operation[list[Any]]):
    """Several operations that are performed concurrently, as parts of one transition."""

    __slots__ = ("_begun", "name", "parts", "return_exceptions", "sleeps")

    def __init__(
        self, parts: tuple[Operation[Any], ...], name: str | None = None, return_exceptions: bool = False
    ) -> None:
        self.parts = parts
        self.name = name
        self.return_exceptions = return_exceptions
        self.sleeps = any(part.sleeps for part in parts)
        self._begun: list[tuple[Transition, Any]] = []
        """Parts that were performed at once, before one has to be waited for."""

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(call for part in self.parts for call in part.calls)

    async def perform(self, transition: Transition) -> list[Any]:
        """The results, in the order of the parts.

        Of several parts that fail the first in this order counts, whichever fails first: it cancels those
        behind it, and waits for those before it.
        """
        done, self._begun = self._begun, []
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
        # Raises what it failed with. The results of parts behind it are nobody's.
        results = [task.result() for task in tasks[: failed + 1]]
        return self._settle([*done, *zip(inner, results, strict=True)], transition)

    async def _perform_part(self, part: Operation[Any], transition: Transition) -> Any:
        if not self.return_exceptions:
            return await part.perform(transition)
        session = transition.session
        if (known := session.recall_error(part, transition)) is not None:
            return known
        session.asked(part, transition)  # as it is before
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
        self._begun = []
        for number, part in enumerate(self.parts):
            inner = transition.of_part(number, self.name)
            result = part.perform_now(inner)
            if result is NOT_NOW:
                return NOT_NOW
            self._begun.append((inner, result))
        done, self._begun = self._begun, []
        return self._settle(done, transition)

    def _settle(self, done: list[tuple[Transition, Any]], transition: Transition) -> list[Any]:
        """Take all answers, in the order of the parts, whichever came first; returns the results."""
        transition.replies = tuple(reply for inner, _ in done for reply in inner.replies)
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
    max_tokens: int = ...,
    temperature: float | None = ...,
    top_p: float | None = ...,
    top_k: int | None = ...,
    stop: str | Sequence[str] = ...,
    raw: bool = ...,
    sample: int | None = ...,
) -> Operation[T]: ...
@overload
def gen(
    prompt: Prompt,
    *,
    name: str | None = ...,
    agent: str | None = ...,
    max_tokens: int = ...,
    temperature: float | None = ...,
    top_p: float | None = ...,
    top_k: int | None = ...,
    stop: str | Sequence[str] = ...,
    regex: str | None = ...,
    json_schema: Mapping[str, Any] | str | None = ...,
    choices: Sequence[str] | None = ...,
    raw: bool = ...,
    sample: int | None = ...,
) -> Operation[Reply]: ...
def gen(
    prompt: Prompt,
    *,
    name: str | None = None,
    agent: str | None = None,
    max_tokens: int = 256,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    stop: str | Sequence[str] = (),
    regex: str | None = None,
    json_schema: Mapping[str, Any] | str | None = None,
    choices: Sequence[str] | None = None,
    schema: Any = None,
    raw: bool = False,
    sample: int | None = None,
) -> Operation[Any]:
    """Ask the model: `text = await gen("Name a prime.")`.

    `prompt` is a string (one user turn), a list of messages, or a `Dialogue`, which then takes the answer as
    its next turn. With `raw=True` it is a string that the model goes on with as it stands, without a chat
    template.

    `name` names the state that ends in this call; supervisors refer to states by these names, so it must be
    a literal. `agent` attributes the call to another agent than the running one. Settings left at None are
    the server's to choose. `regex`, `json_schema`, `choices` and `schema` make the server constrain the
    answer; give one of them at most. With `schema` (a pydantic model, or any other type that pydantic can
    read) the answer is an instance instead of text; `InvalidAnswer` if the text cannot be read, as when it
    was cut off at `max_tokens`. `sample` overrides the sample number that the server is told (by default the
    number of the firing of the state).
    """
    if raw and not isinstance(prompt, str):
        raise TypeError(f"raw=True takes the prompt as a string, not {type(prompt).__name__}")
    if schema is not None:
        if json_schema is not None:
            raise ValueError("schema and json_schema exclude each other: give one grammar at most")
        json_schema = schema_of(schema)
    elif json_schema is not None:
        json_schema = schema_text(json_schema)
    sampling = sampling_of(max_tokens, temperature, top_p, top_k, stop, regex, json_schema, choices)
    # Not `to_be_awaited`, which is a price at every step of a search: the compiler knows `gen` where it sees it.
    return Gen(
        () if raw else as_messages(prompt),
        str(prompt) if raw else None,
        sampling,
        name,
        None if agent is None else check_name("agent", agent),
        checked_sample(sample),
        prompt if isinstance(prompt, Dialogue) else None,
        schema,
    )


def gather(
    *parts: Awaitable[Any], name: str | None = None, return_exceptions: bool = False
) -> Operation[list[Any]]:
    """Do several things at once: `a, b = await gather(gen("..."), child.next())`.

    All belong to one transition: together they lead to one next state. Results come in the order of the
    arguments, which are calls of `gen`, `tool`, `choose`, of agents, of a child's `next` and `resume`, or
    children themselves. Without a `name` the state takes the name that its calls share. With
    `return_exceptions` an exception that a part raises stands in its place among the results.
    """
    operations = [as_operation(part) for part in parts]
    for position, (part, operation) in enumerate(zip(parts, operations, strict=True)):
        if isinstance(part, CoroutineType):
            helper = part.__name__
            for each in parts:
                if isinstance(each, CoroutineType):
                    each.close()
            raise TypeError(
                f"argument {position} of gather is a coroutine of {helper}, whose awaits would be states of "
                f"several branches at once: write tool({helper}, ...), which runs it as one step, make it an "
                "@agent, or await it alone"
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
                f"argument {position} of gather is the same operation, or goes on with the same child, as one "
                "before it; one thing after the other, or make another"
            )
    dialogues = [id(part.dialogue) for part in found if isinstance(part, Gen) and part.dialogue is not None]
    if len(set(dialogues)) < len(dialogues):
        raise ValueError(
            "two calls of one gather go on with the same dialogue, which can take one answer only; "
            "give each call its own dialogue.copy()"
        )
    return to_be_awaited(Gather(tuple(found), name, return_exceptions))


def _shares_child(one: Operation[Any], other: Operation[Any]) -> bool:
    child = getattr(one, "child", None)
    return child is not None and child is getattr(other, "child", None)


def as_operation(value: object) -> Operation[Any] | None:
    """The operation that awaiting `value` means; None if there is none."""
    if isinstance(value, Operation):
        return value
    convert = getattr(value, "__hive_operation__", None)
    return None if convert is None else cast(Operation[Any], convert())
