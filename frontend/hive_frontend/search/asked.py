"""Descriptions of what operations request from models and tools, which a journal compares with an earlier run."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

from hive_frontend.client.cached_message import Delete
from hive_frontend.client.contract import Sampling
from hive_frontend.compiler.process import Waiting, contents, shared_objects
from hive_frontend.compiler.running.hidden import HELD
from hive_frontend.operation import Operation
from hive_frontend.operations.call import Gather, Gen
from hive_frontend.operations.choice import AskHuman
from hive_frontend.operations.choreography import NewMessage
from hive_frontend.operations.fork import closure_of
from hive_frontend.operations.model_call import ModelCall
from hive_frontend.operations.tool import Tool
from hive_frontend.operations.transition import Asked, Kept, Transition
from hive_frontend.search.fingerprint import code_behind, fingerprint, shown

_DATA = (dict, list, tuple, set, frozenset)
_USUAL = Sampling()


def asked_by(operation: object, transition: Transition) -> Asked:
    """Describe what an operation requests in a transition; empty if it uses neither model nor tool."""
    match operation:
        case ModelCall():
            return _of_call(operation, transition)
        case Tool():
            return _of_tool(operation, transition)
        case AskHuman():
            return {
                "the question": shown(operation.text),
                "the answers": shown((operation.choices, operation.schema)),
            }
        case Delete():
            return {"the message": shown(operation.message.content)}
        case Gather():
            return {
                f"part {number}: {name}": what
                for number, part in enumerate(operation.parts)
                for name, what in asked_by(part, transition).items()
            }
    return {}


def is_repeated(operation: object) -> bool:
    """Whether an operation calls a function that is called again when a run is resumed (`rerun=True`)."""
    match operation:
        case Tool():
            return operation.must_repeat
        case Gather():
            return any(map(is_repeated, operation.parts))
    return False


def _of_call(call: ModelCall[Any], transition: Transition) -> Asked:
    caller = transition.caller
    fields: dict[str, Any] = {"the prompt": call.shown}
    if len(call.messages) > 1:
        fields["the prompt"] = "\n\n".join(f"{message.role}: {message.shown}" for message in call.messages)
    elif call.messages and call.messages[0].role != "user":
        fields["the role"] = call.messages[0].role
    elif call.prompt is not None:
        fields["raw"] = True
    fields |= {
        name: value for name, value in call.sampling._asdict().items() if value != getattr(_USUAL, name)
    }
    fields |= {"the agent": call.agent or caller.agent, "the model": caller.model, "sample": call.sample}
    if call.tools is not None:
        fields["the tools"] = call.tools
    if isinstance(call, NewMessage):
        fields |= {
            "tokens": call.tokens,
            "parents": tuple(parent.content for parent in call.parents) or None,
            "offsets": call.offsets or None,
            "new_offset": call.new_offset,
            "corrector": call.corrector,
        }
    return {name: shown(value) for name, value in fields.items() if value is not None}


def _of_tool(tool: Tool, transition: Transition) -> Asked:
    kept = transition.kept or Kept()
    function: Any = tool.function
    args, kwargs = tool.args, tool.kwargs
    while isinstance(function, partial):
        function, args, kwargs = function.func, (*function.args, *args), {**function.keywords, **kwargs}
    fields: dict[str, Any] = {"the tool": tool.label}
    if isinstance(function, FunctionType):
        # Closure variables count only if the agent defines the function; elsewhere they are like globals.
        if any(_defines(agent, function.__code__) for agent in kept.code):
            fields |= {f"variable {name!r} of the tool": value for name, value in closure_of(function)}
    else:
        owner = getattr(function, "__self__", function)
        if not isinstance(owner, (type, ModuleType)):
            fields["the object"] = owner
    fields |= {f"argument {number}": value for number, value in enumerate(args)}
    fields |= {f"argument {name!r}": value for name, value in kwargs.items()}
    asked = {name: shown(value, kept.apart) for name, value in fields.items()}
    return {**asked, "code": code_behind(function)}


def _defines(outer: CodeType, inner: CodeType) -> bool:
    """Whether `inner` is nested in the source of `outer`."""
    lines = [line for _, _, line in outer.co_lines() if line is not None]
    return inner.co_filename == outer.co_filename and outer.co_firstlineno < inner.co_firstlineno <= max(
        lines
    )


def kept_of(operation: Operation[Any], waiting: Waiting) -> Kept:
    """Return what a journal records of the firing of a state that waits for an operation."""
    apart = _apart(waiting)
    # Dialogues change with their answers, which the journal has.
    dialogues = [call.dialogue for call in operation.calls if isinstance(call, Gen) and call.dialogue]
    return Kept(
        held=partial(_held, waiting, [*apart, *dialogues]),
        apart=apart,
        code=[program.function.__code__ for program, _, _ in waiting.frames],
    )


def _apart(waiting: Waiting) -> list[Any]:
    """Return the objects that an agent uses at an await but does not own: `Shared` ones, and those of its module and
    of enclosing functions, except for plain data, which counts as constant."""
    found: list[Any] = []
    for program, _, variables in waiting.frames:
        found += [each for each in program.outer_objects().values() if type(each) not in _DATA]
        found += shared_objects(program, variables)
    return found


def _held(waiting: Waiting, skipped: Iterable[Any]) -> dict[str, str]:
    """Return the fingerprints of an agent's variables at an await, except for the contents of `skipped` objects and
    for variables that it does not read again."""
    return {
        f"{program.describe(name)} of {program.name}": fingerprint(contents(value), skipped)
        for program, _, variables in waiting.frames
        for name, value in variables.items()
        if name != HELD
    }
