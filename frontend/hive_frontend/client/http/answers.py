"""Parsing of servers' answers into completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hive_frontend.client.contract import Completion, Sampling
from hive_frontend.client.json_text import Json, as_json
from hive_frontend.client.messages import ToolCall
from hive_frontend.client.structured import InvalidAnswer
from hive_frontend.errors import ModelError


def as_dict(value: Any) -> Json:
    """Return `value` if it is a dict, otherwise an empty dict."""
    return value if isinstance(value, dict) else {}


PromptUsage = tuple[int, int]
"""Number of prompt tokens, and how many of them were hits in the server's prefix cache."""
NO_USAGE: PromptUsage = (0, 0)


def prompt_usage(prompt: Any, cached: Any) -> PromptUsage:
    """Return the usage that a server reports; zeros for counts that it does not report."""
    if not isinstance(prompt, int):
        return NO_USAGE
    if not isinstance(cached, int):
        return prompt, 0
    return prompt, cached if cached < prompt else prompt


def read_usage(usage: Any) -> PromptUsage:
    """Parse the `usage` of OpenAI's endpoints, which counts the prompt once for all choices."""
    usage = as_dict(usage)
    return prompt_usage(
        usage.get("prompt_tokens"), as_dict(usage.get("prompt_tokens_details")).get("cached_tokens")
    )


def completion_of(
    text: Any,
    meta: Json,
    used: Any,
    finish: Any,
    usage: PromptUsage,
    prompt_ids: Sequence[int] = (),
    output_ids: Sequence[int] = (),
) -> Completion:
    """Return an answer as a `Completion`: `meta` is its `meta_info`, `used` its number of tokens, `finish` its reason
    to stop."""
    if not isinstance(text, str):
        raise ModelError(f"the server's answer has no text, but {text!r}")
    hive = as_dict(meta.get("hive"))
    generated = hive.get("tokens_generated", meta.get("completion_tokens", used))
    reason = finish.get("type") if isinstance(finish, dict) else finish
    return Completion(
        text,
        generated if isinstance(generated, int) else 0,
        hive.get("tokens_replayed", 0),
        None if reason is None else str(reason),
        prompt_ids,
        output_ids,
        *usage,
    )


def read_generated(answer: Json, prompt_ids: Sequence[int] = ()) -> Completion:
    """Parse an answer of `/generate`. `prompt_ids` are kept only if the server reports the tokens of the answer."""
    meta = as_dict(answer.get("meta_info"))
    output_ids = answer.get("output_ids")
    return completion_of(
        answer.get("text"),
        meta,
        meta.get("completion_tokens"),
        meta.get("finish_reason"),
        prompt_usage(meta.get("prompt_tokens"), meta.get("cached_tokens")),
        () if output_ids is None else prompt_ids,
        () if output_ids is None else output_ids,
    )


def choices_of(answer: Json) -> list[Any]:
    """Return the choices in an answer of OpenAI's endpoints; `ModelError` if there are none."""
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices:
        raise ModelError(f"the server's answer has no choices: {as_json(answer).decode()[:200]}")
    return choices


def read_choice(choice: Json, used: Any, usage: PromptUsage) -> Completion:
    """Parse one choice, of `used` tokens."""
    message = as_dict(choice.get("message"))
    text = message.get("content") if "message" in choice else choice.get("text")
    # A model that stopped at once, or was cut off while thinking, leaves the content empty or null.
    done = completion_of(
        text or "", as_dict(choice.get("meta_info")), used, choice.get("finish_reason"), usage
    )
    calls = message.get("tool_calls")
    return done._replace(tool_calls=read_tool_calls(calls)) if calls else done


def read_tool_calls(calls: Any) -> tuple[ToolCall, ...]:
    """Parse the calls of tools in an answer of OpenAI's chat endpoint."""
    found = []
    for number, call in enumerate(calls if isinstance(calls, list) else []):
        function = as_dict(as_dict(call).get("function"))
        arguments = function.get("arguments")
        # Some servers send the arguments as an object.
        text = arguments if isinstance(arguments, str) else as_json(arguments or {}).decode()
        found.append(ToolCall(str(call.get("id") or f"call_{number}"), str(function.get("name")), text))
    return tuple(found)


class StreamedCalls:
    """The calls of tools in a streamed answer, which arrive in pieces."""

    def __init__(self) -> None:
        self._calls: dict[int, Json] = {}

    def take(self, pieces: Any) -> None:
        """Process the `tool_calls` of an event."""
        for piece in map(as_dict, pieces or ()):
            call = self._calls.setdefault(piece.get("index", 0), {"function": {"name": "", "arguments": ""}})
            call["id"] = piece.get("id") or call.get("id")
            function = as_dict(piece.get("function"))
            for field in ("name", "arguments"):
                call["function"][field] += function.get(field) or ""

    def all(self) -> tuple[ToolCall, ...]:
        """Return the calls, once the answer is complete."""
        return read_tool_calls([self._calls[index] for index in sorted(self._calls)])


def split_evenly(used: Any, count: int) -> list[Any]:
    """Split the tokens used among several choices: servers report only the sum."""
    if not isinstance(used, int):
        return [used] * count
    each, rest = divmod(used, count)
    return [each + (number < rest) for number in range(count)]


def invalid_answer(url: str, sampling: Sampling, text: str) -> InvalidAnswer:
    """Return the error for an answer that the grammar does not allow."""
    what = "choices" if sampling.choices else "regex"
    return InvalidAnswer(
        f"{url}: {what} does not allow the answer {text[:200]!r}; the server does not support {what}, or ignored it. "
        "State the format in the prompt, too, and retry the call: @agent(retries=2)",
        text=text,
    )
