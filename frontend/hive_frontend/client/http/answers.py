"""What servers answer, as completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hive_frontend.client.contract import Completion, Sampling
from hive_frontend.client.json_text import Json, as_json
from hive_frontend.client.structured import InvalidAnswer
from hive_frontend.errors import ModelError


def as_dict(value: Any) -> Json:
    """`value` if it is an object, or else an empty one."""
    return value if isinstance(value, dict) else {}


Read = tuple[int, int]
"""What a server read to make an answer: tokens of the prompt, and those of them that it had in its prefix cache."""
NOTHING_READ: Read = (0, 0)


def read_of(prompt: Any, cached: Any) -> Read:
    """What a server read, of which it need not tell anything."""
    if not isinstance(prompt, int):
        return NOTHING_READ
    if not isinstance(cached, int):
        return prompt, 0
    return prompt, cached if cached < prompt else prompt


def read_usage(usage: Any) -> Read:
    """What the `usage` of OpenAI's endpoints says that a request read; once, however many choices it asked for."""
    usage = as_dict(usage)
    return read_of(
        usage.get("prompt_tokens"), as_dict(usage.get("prompt_tokens_details")).get("cached_tokens")
    )


def completion_of(
    text: Any,
    meta: Json,
    used: Any,
    finish: Any,
    read: Read,
    prompt_ids: Sequence[int] = (),
    output_ids: Sequence[int] = (),
) -> Completion:
    """An answer, given what its server says of it in `meta_info`, of the tokens used and read, and of its end."""
    if not isinstance(text, str):
        raise ModelError(f"the server's answer holds no text but {text!r}")
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
        *read,
    )


def read_generated(answer: Json, prompt_ids: Sequence[int] = ()) -> Completion:
    """An answer of `/generate`. Where the server tells no tokens of the answer, none are told of the prompt."""
    meta = as_dict(answer.get("meta_info"))
    output_ids = answer.get("output_ids")
    return completion_of(
        answer.get("text"),
        meta,
        meta.get("completion_tokens"),
        meta.get("finish_reason"),
        read_of(meta.get("prompt_tokens"), meta.get("cached_tokens")),
        () if output_ids is None else prompt_ids,
        () if output_ids is None else output_ids,
    )


def choices_of(answer: Json) -> list[Any]:
    """The choices of OpenAI's endpoints, at least one."""
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices:
        raise ModelError(f"the server's answer holds no choice: {as_json(answer).decode()[:200]}")
    return choices


def read_choice(choice: Json, used: Any, read: Read) -> Completion:
    """One of the choices, which took `used` tokens."""
    text = as_dict(choice["message"]).get("content") if "message" in choice else choice.get("text")
    # A model that stopped at once, or was cut off while thinking, leaves the content empty or null.
    return completion_of(
        text or "", as_dict(choice.get("meta_info")), used, choice.get("finish_reason"), read
    )


def shares(used: Any, count: int) -> list[Any]:
    """The tokens of several choices: servers tell their sum, so each has an equal share."""
    if not isinstance(used, int):
        return [used] * count
    each, rest = divmod(used, count)
    return [each + (number < rest) for number in range(count)]


def invalid_answer(url: str, sampling: Sampling, text: str) -> InvalidAnswer:
    """The error for an answer that the grammar does not allow."""
    what = "choices" if sampling.choices else "regex"
    return InvalidAnswer(
        f"{url}: the answer {text[:200]!r} is not what {what} allows; the server does not know it, or did not keep to "
        "it. Ask for it in the prompt, too, and have the call tried again: @agent(retries=2)",
        text=text,
    )
