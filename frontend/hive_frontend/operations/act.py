"""A model that calls tools until it has an answer: `act`.

It is an `async def` of `gen` and `gather`, compiled like any helper of an agent. So each answer of the model and each
round of tools is a state, which can be branched at, journaled and resumed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar, Unpack, get_args, overload

from pydantic_core import to_json

from hive_frontend.client.contract import SamplingSettings
from hive_frontend.client.dialogue import Dialogue, as_messages
from hive_frontend.client.messages import ToolCall
from hive_frontend.client.reply import Reply
from hive_frontend.client.tools import (
    FINAL_ANSWER,
    BadArguments,
    ModelTool,
    ToolFormat,
    ToolList,
    Tools,
    checked_choice,
    model_tools,
)
from hive_frontend.errors import ForkError, JournalError, NobodyToAsk, NoModelError, StepsExceeded
from hive_frontend.operation import Call
from hive_frontend.operations.call import Prompt, gather, gen
from hive_frontend.operations.fork import Memo, copy
from hive_frontend.operations.tool import Tool
from hive_frontend.operations.transition import Transition

T = TypeVar("T")
_log = logging.getLogger(__name__)


class _Shown(NamedTuple):
    shown: str


@dataclass(slots=True, eq=False, repr=False)
class ToolUse(Tool):
    """A model's call of a tool. Its result is text for the model, also if the call is invalid or the tool fails."""

    call: ToolCall
    problem: str | None
    """Why the tool cannot be called."""

    @property
    def calls(self) -> tuple[Call, ...]:
        return (_Shown(self.call.shown),)

    async def perform(self, transition: Transition) -> str:
        # A fork of a run may have given the tool another result, as JSON.
        result = _text(self.problem if self.problem is not None else await Tool.perform(self, transition))
        transition.results = (result,)
        return result

    async def _call(self, transition: Transition) -> str:
        try:
            return _text(await Tool._call(self, transition))
        except (ForkError, JournalError, NobodyToAsk, NoModelError):
            raise  # Mistakes of the program, about which the model can do nothing.
        except Exception as error:
            if transition.run is not None and transition.run.ends(error):
                raise
            _log.info("tool %s, called by a model, failed", self.name, exc_info=True)
            return f"Error: {type(error).__name__}: {error}"

    def __fork__(self, memo: Memo) -> ToolUse:
        return replace(self, function=copy(self.function, memo), kwargs=copy(self.kwargs, memo))


def _text(result: Any) -> str:
    return str(result) if isinstance(result, str) else to_json(result, fallback=str).decode()


def _use(call: ToolCall, tools: Sequence[ModelTool]) -> ToolUse:
    """Return the operation that makes a model's call."""
    found = next((each for each in tools if each.name == call.name), None)
    if found is None:
        names = ", ".join(each.name for each in tools)
        return _refused(call, f"Error: there is no tool {call.name!r}; the tools are {names}")
    try:
        arguments = found.arguments(call.arguments)
    except BadArguments as error:
        return _refused(call, f"Error: invalid arguments: {error}")
    return ToolUse(
        found.function,
        (),
        arguments,
        found.name,
        found.timeout,
        found.rerun,
        found.waits_for,
        call,
        None,
    )


def _refused(call: ToolCall, why: str) -> ToolUse:
    return ToolUse(str, (), {}, call.name, None, False, "tool", call, why)


def _final_answer(schema: Any) -> ModelTool:
    """Return the tool by which the model gives an answer of a type."""

    def final_answer(answer: Any) -> Any:
        """Give the final answer, which ends the task."""
        return answer

    final_answer.__annotations__["answer"] = schema
    return ModelTool(final_answer, name=FINAL_ANSWER)


class _Plan(NamedTuple):
    """The tools of an `act`, and how the model may call them."""

    tools: tuple[ModelTool, ...]
    final: ModelTool | None
    """The tool by which the model gives a typed answer; None if the answer is text."""
    choice: str
    parallel: bool
    format: ToolFormat

    @property
    def all(self) -> tuple[ModelTool, ...]:
        return self.tools if self.final is None else (*self.tools, self.final)

    def offered(self, called: bool) -> Tools:
        """Return what the model may call next. What it must call, it must call first; `called`: it has called tools."""
        choice, tools = self.choice, self.all
        if called and choice != "none":
            choice = "auto"
        if self.final is not None:
            if choice == "required":
                tools = self.tools
            choice = {"auto": "required", "none": FINAL_ANSWER}.get(choice, choice)
        return Tools(tuple(each.schema for each in tools), choice, self.parallel, self.format)

    @property
    def reminder(self) -> str:
        """What a model is told that calls no tool, although it must."""
        return "Call a tool." if self.final is None else f"Call {FINAL_ANSWER} with your answer."

    def answers(self, reply: Reply, called: bool) -> list[Any]:
        """Return the final answer in a reply of the model; empty if it has none."""
        if self.final is None:
            # A text that was cut off before it became the call that the model must make is no answer.
            is_free = called or self.choice in ("auto", "none")
            return [reply] if is_free and not reply.tool_calls else []
        written = [call.arguments for call in reply.tool_calls if call.name == FINAL_ANSWER]
        if not reply.tool_calls:
            # A model that ignores the tool may still write the value.
            written = [f'{{"answer": {reply}}}']
        for arguments in written:
            with suppress(BadArguments):
                return [self.final.arguments(arguments)["answer"]]
        return []


def _planned(
    tools: ToolList, schema: Any, choice: str, parallel: bool, format: ToolFormat, max_steps: int
) -> _Plan:
    """Check the arguments of an `act`."""
    if type(max_steps) is not int or max_steps < 1:
        raise ValueError(f"max_steps must be an integer of at least 1, not {max_steps!r}")
    if format not in get_args(ToolFormat):
        raise ValueError(f"tool_format must be one of {', '.join(get_args(ToolFormat))}, not {format!r}")
    found = model_tools(tools)
    final = None if schema is None else _final_answer(schema)
    model_tools([*found, *([] if final is None else [final])])
    checked_choice(choice, [each.name for each in found])
    return _Plan(tuple(found), final, choice, parallel, format)


@overload
async def act(
    prompt: Prompt,
    *,
    tools: ToolList,
    schema: type[T],
    max_steps: int = ...,
    tool_choice: str = ...,
    parallel: bool = ...,
    tool_format: ToolFormat = ...,
    agent: str | None = ...,
    **settings: Unpack[SamplingSettings],
) -> T: ...
@overload
async def act(
    prompt: Prompt,
    *,
    tools: ToolList,
    max_steps: int = ...,
    tool_choice: str = ...,
    parallel: bool = ...,
    tool_format: ToolFormat = ...,
    agent: str | None = ...,
    **settings: Unpack[SamplingSettings],
) -> Reply: ...
async def act(
    prompt: Prompt,
    *,
    tools: ToolList,
    schema: Any = None,
    max_steps: int = 10,
    tool_choice: str = "auto",
    parallel: bool = True,
    tool_format: ToolFormat = "auto",
    agent: str | None = None,
    **settings: Unpack[SamplingSettings],
) -> Any:
    """Let the model call tools until it has an answer: `text = await act("What is new?", tools=[search, read])`.

    `prompt` is that of `gen`; a `Dialogue` takes all turns. `tools` are functions, methods, agents and `ModelTool`s.
    The model sees their names, docstrings and typed parameters, but not parameters that `functools.partial` has bound.
    The calls of one answer run concurrently. Results that are not strings are sent as JSON. Errors of tools, and of
    the model's arguments, are sent to the model as text.

    With `schema`, a type as in `gen`, the answer is an instance of it, which the model gives by calling `final_answer`.
    If there is no answer after `max_steps` answers of the model, `StepsExceeded` is raised.

    `tool_choice` is `"auto"`, `"none"`, `"required"` or the name of a tool; the last two apply until it is called. With
    `parallel=False` the model may call one tool at a time. `tool_format` is `"native"` for the model's own format,
    which the server parses, or `"grammar"` for JSON that a grammar enforces; the default is the first where the server
    has it. `agent` and `settings` are those of `gen`; `max_tokens` is 1024 by default.

    Each answer of the model is a state called `act`, and each round of tools a state called `tools`.
    """
    plan = _planned(tools, schema, tool_choice, parallel, tool_format, max_steps)
    settings.setdefault("max_tokens", 1024)
    dialogue = prompt if isinstance(prompt, Dialogue) else Dialogue(as_messages(prompt))
    called = False
    for _ in range(max_steps):
        reply = await gen(dialogue, tools=plan.offered(called), name="act", agent=agent, **settings)
        if answers := plan.answers(reply, called):
            for call in reply.tool_calls:
                dialogue.tool("The answer is final.", call)
            return answers[0]
        if not reply.tool_calls:
            dialogue.user(plan.reminder)
            continue
        called = True
        uses = [_use(call, plan.all) for call in reply.tool_calls]
        results = await gather(*uses, name="tools")
        for call, result in zip(reply.tool_calls, results, strict=True):
            dialogue.tool(result, call)
    raise StepsExceeded(
        f"the model gave no final answer in {max_steps} steps (max_steps); raise max_steps, or catch StepsExceeded and "
        "fail the branch"
    )
