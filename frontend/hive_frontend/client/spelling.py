"""How servers spell the settings of `Sampling`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Literal

from hive_frontend.client.contract import Sampling
from hive_frontend.client.json_text import Json, parsed
from hive_frontend.client.messages import Message

Kind = Literal["sglang", "vllm", "openai", "other"]
"""Whose server answers at OpenAI's endpoints; each extends them in a way of its own."""

WRAPPED = "answer"


def settings_of(sampling: Sampling) -> Json:
    """The settings that all endpoints spell alike, without those left to the server."""
    temperature, top_p, top_k, stop = sampling.temperature, sampling.top_p, sampling.top_k, sampling.stop
    settings: Json = {}
    if temperature is not None:
        settings["temperature"] = temperature
    if top_p is not None:
        settings["top_p"] = top_p
    if top_k is not None:
        settings["top_k"] = top_k
    if stop:
        settings["stop"] = list(stop)
    return settings


def grammar_of(sampling: Sampling) -> Json:
    """What the answer must match, as SGLang's own endpoints spell it."""
    if sampling.json_schema is not None:
        return {"json_schema": sampling.json_schema}
    grammar = sampling.grammar
    return {} if grammar is None else {"regex": grammar}


def openai_grammar(sampling: Sampling, kind: Kind, *, chat: bool) -> Json:
    """The same as servers of OpenAI's endpoints spell it; those that nobody knows may take SGLang's word."""
    if sampling.json_schema is not None:
        return _json_schema(json.loads(sampling.json_schema))
    if sampling.grammar is None:
        return {}
    if kind == "vllm":
        one = {"choice": list(sampling.choices)} if sampling.choices else {"regex": sampling.regex}
        return {"structured_outputs": one}
    if is_wrapped(sampling, kind, chat=chat):
        only = {"enum": list(sampling.choices)} if sampling.choices else {"pattern": sampling.regex}
        wrapped = {"type": "object", "properties": {WRAPPED: {"type": "string", **only}}}
        return _json_schema({**wrapped, "required": [WRAPPED], "additionalProperties": False}, strict=True)
    return {"regex": sampling.grammar}


def is_wrapped(sampling: Sampling, kind: Kind, *, chat: bool) -> bool:
    """Whether the answer comes as the field `WRAPPED` of an object: OpenAI knows no grammars but JSON schemas."""
    return kind == "openai" and chat and sampling.grammar is not None


def unwrapped(text: str) -> str:
    """The answer in an object; the text as it stands where it is none."""
    answer = parsed(text.encode())
    inner = answer.get(WRAPPED) if isinstance(answer, dict) else None
    return inner if isinstance(inner, str) else text


def fits(sampling: Sampling, text: str, finish_reason: str | None) -> bool:
    """Whether an answer is one that the grammar allows, or the beginning of one where it may have been cut short."""
    cut = finish_reason == "length" or bool(sampling.stop)
    if sampling.choices:
        return any(choice.startswith(text) if cut else choice == text for choice in sampling.choices)
    if sampling.regex is None or cut:
        return True
    try:
        return re.fullmatch(sampling.regex, text) is not None
    except re.error:
        # Grammar engines have dialects of their own.
        return True


def _json_schema(schema: Any, **more: Any) -> Json:
    return {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": schema, **more},
        }
    }


def spelled(messages: Sequence[Message]) -> list[Json]:
    """A dialogue as all servers take it."""
    return [{"role": message.role, "content": message.content} for message in messages]
