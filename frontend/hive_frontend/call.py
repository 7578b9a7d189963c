"""The model calls that agent code awaits: `gen` for one, `gather` for several at once."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hive_frontend.client.base import Sampling, schema_text
from hive_frontend.dialogue import Dialogue, Message, as_messages
from hive_frontend.errors import NoModelError
from hive_frontend.identity import check_label
from hive_frontend.reply import Reply
from hive_frontend.scope import NativeScope, current_scope

Prompt = str | Dialogue | Sequence[Message | tuple[str, str] | dict[str, str]]


@dataclass(frozen=True, slots=True)
class Gen:
    """One model call, described but not made: awaiting it makes it.

    The prompt is fixed when the call is described; a dialogue that grows later does not change it.
    """

    messages: tuple[Message, ...]
    prompt: str | None
    sampling: Sampling
    name: str | None
    agent: str | None
    sample: int | None
    dialogue: Dialogue | None
    """The dialogue that takes the answer as its next turn."""

    @property
    def calls(self) -> tuple[Gen, ...]:
        return (self,)

    def __await__(self) -> Generator[Any, None, Reply]:
        replies = yield from _perform(self).__await__()
        return self.settle(replies, (self.dialogue,))

    def settle(self, replies: Sequence[Reply], dialogues: Sequence[Dialogue | None]) -> Reply:
        """Write the answer into the dialogue; returns what the awaiting code gets."""
        _answer(replies, dialogues)
        return replies[0]


@dataclass(frozen=True, slots=True)
class Gather:
    """Several model calls, described but not made: awaiting it makes them concurrently."""

    calls: tuple[Gen, ...]
    name: str | None

    def __await__(self) -> Generator[Any, None, list[Reply]]:
        replies = yield from _perform(self).__await__()
        return self.settle(replies, [call.dialogue for call in self.calls])

    def settle(self, replies: Sequence[Reply], dialogues: Sequence[Dialogue | None]) -> list[Reply]:
        """Write the answers into the dialogues; returns what the awaiting code gets."""
        _answer(replies, dialogues)
        return list(replies)


Operation = Gen | Gather
"""What agent code can await."""


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
    raw: bool = False,
    sample: int | None = None,
) -> Gen:
    """Ask the model: `text = await gen("Name a prime.")`.

    `prompt` is a string (one user turn), a list of messages, or a `Dialogue`, which then takes the answer as
    its next turn. With `raw=True` it is a string that the model goes on with as it stands, without a chat
    template.

    `name` names the state that ends in this call; supervisors refer to states by these names, so it must be
    a literal. `agent` attributes the call to another agent than the running one. Settings left at None are
    the server's to choose. `regex`, `json_schema` and `choices` make the server constrain the answer; give
    one of them at most. `sample` overrides the sample number that the server is told (by default the number
    of the firing of the state).
    """
    if raw and not isinstance(prompt, str):
        raise TypeError(f"raw=True takes the prompt as a string, not {type(prompt).__name__}")
    if sample is not None and not 0 <= sample < 2**31:
        raise ValueError(f"sample must be from 0 to 2**31 - 1, not {sample!r}")
    sampling = Sampling(
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        regex=regex,
        json_schema=None if json_schema is None else schema_text(json_schema),
        choices=_checked_choices(choices),
    )
    return Gen(
        messages=() if raw else as_messages(prompt),
        prompt=str(prompt) if raw else None,
        sampling=sampling,
        name=name,
        agent=None if agent is None else check_label("agent", agent),
        sample=sample,
        dialogue=prompt if isinstance(prompt, Dialogue) else None,
    )


def gather(*calls: Gen, name: str | None = None) -> Gather:
    """Ask the model several things at once: `a, b = await gather(gen("..."), gen("..."))`.

    All calls belong to one transition: together they lead to one next state. Answers come in the order of
    the calls. Without a `name` the state takes the name that its calls share.
    """
    for position, call in enumerate(calls):
        if not isinstance(call, Gen):
            raise TypeError(
                f"gather takes calls of gen, but argument {position} is a {type(call).__name__}; "
                "write gather(gen(...), gen(...)), or gather(*calls) for a list"
            )
    dialogues = [id(call.dialogue) for call in calls if call.dialogue is not None]
    if len(set(dialogues)) < len(dialogues):
        raise ValueError(
            "two calls of one gather go on with the same dialogue, which can take one answer only; "
            "give each call its own dialogue.copy()"
        )
    return Gather(calls=calls, name=name)


def _checked_choices(choices: Sequence[str] | None) -> tuple[str, ...]:
    if choices is None:
        return ()
    options = () if isinstance(choices, str) else tuple(choices)
    if not options or not all(isinstance(option, str) and option for option in options):
        raise ValueError(f"choices must be a list of non-empty strings, not {choices!r}")
    return options


def _answer(replies: Sequence[Reply], dialogues: Sequence[Dialogue | None]) -> None:
    for reply, dialogue in zip(replies, dialogues, strict=True):
        if dialogue is not None:
            dialogue.assistant(reply)


async def _perform(operation: Operation) -> list[Reply]:
    scope = current_scope()
    if isinstance(scope, NativeScope):
        return await scope.perform(operation)
    raise NoModelError(
        "a model call was awaited outside a run, so there is no model to ask; "
        "run the agent with run(agent, ..., model=...), or await it inside `async with Session(model):`"
    )
