"""The fields of request bodies: `Sampling` and messages in the formats of the servers' endpoints."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Literal

from hive_frontend.client.contract import Sampling
from hive_frontend.client.json_text import Json, parsed
from hive_frontend.client.messages import Message, ToolCall
from hive_frontend.client.tools import Tools

Kind = Literal["sglang", "vllm", "openai", "other"]
"""The server behind OpenAI's endpoints; each kind extends them in its own way."""

_WRAPPER_FIELD = "answer"


def sampling_fields(sampling: Sampling) -> Json:
    """Return the settings whose fields are the same at all endpoints, without those left to the server."""
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


def grammar_fields(sampling: Sampling) -> Json:
    """Return the grammar of the answer in the format of SGLang's own endpoints."""
    if sampling.json_schema is not None:
        return {"json_schema": sampling.json_schema}
    grammar = sampling.grammar
    return {} if grammar is None else {"regex": grammar}


def openai_grammar_fields(sampling: Sampling, kind: Kind, *, chat: bool) -> Json:
    """Return the grammar in the format of OpenAI's endpoints. Unknown servers get SGLang's field, which they may
    support."""
    if sampling.json_schema is not None:
        return _json_schema(json.loads(sampling.json_schema))
    if sampling.grammar is None:
        return {}
    if kind == "vllm":
        one = {"choice": list(sampling.choices)} if sampling.choices else {"regex": sampling.regex}
        return {"structured_outputs": one}
    if is_wrapped(sampling, kind, chat=chat):
        only = {"enum": list(sampling.choices)} if sampling.choices else {"pattern": sampling.regex}
        wrapped = {"type": "object", "properties": {_WRAPPER_FIELD: {"type": "string", **only}}}
        return _json_schema(
            {**wrapped, "required": [_WRAPPER_FIELD], "additionalProperties": False}, strict=True
        )
    return {"regex": sampling.grammar}


def is_wrapped(sampling: Sampling, kind: Kind, *, chat: bool) -> bool:
    """Return whether the answer arrives as a field of an object: OpenAI supports no grammars except JSON schemas."""
    return kind == "openai" and chat and sampling.grammar is not None


def unwrapped(text: str) -> str:
    """Return the answer that the object in `text` wraps; `text` itself if it is not such an object."""
    answer = parsed(text.encode())
    inner = answer.get(_WRAPPER_FIELD) if isinstance(answer, dict) else None
    return inner if isinstance(inner, str) else text


def matches_grammar(sampling: Sampling, text: str, finish_reason: str | None) -> bool:
    """Return whether the grammar allows an answer, or the beginning of one if it may have been cut off."""
    cut = finish_reason == "length" or bool(sampling.stop)
    if sampling.choices:
        return any(choice.startswith(text) if cut else choice == text for choice in sampling.choices)
    if sampling.regex is None or cut:
        return True
    try:
        return re.fullmatch(sampling.regex, text) is not None
    except re.error:
        # The regex may be valid for the grammar engine, but not for Python.
        return True


def _json_schema(schema: Any, **more: Any) -> Json:
    return {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": schema, **more},
        }
    }


def tool_fields(tools: Tools) -> Json:
    """Return the tools that a model may call in the format of OpenAI's chat endpoint."""
    listed = [
        {
            "type": "function",
            "function": {"name": name, "description": told, "parameters": json.loads(parameters)},
        }
        for name, told, parameters in tools.schemas
    ]
    choice: Any = tools.choice
    if choice not in ("auto", "required", "none"):
        choice = {"type": "function", "function": {"name": choice}}
    fields: Json = {"tools": listed, "tool_choice": choice}
    # Not every server knows the field, and parallel calls are the default of those that do.
    return fields if tools.parallel else {**fields, "parallel_tool_calls": False}


def chat_fields(messages: Sequence[Message]) -> list[Json]:
    """Return a dialogue in which tools were called in the format of OpenAI's chat endpoint."""
    fields: list[Json] = []
    ids: list[str] = []
    for turn, message in enumerate(messages):
        if message.role == "tool":
            # A call that was written as text has no id, but results are in the order of the calls.
            id = message.tool_call_id or (ids.pop(0) if ids else f"call_{turn}")
            fields.append({"role": "tool", "tool_call_id": id, "content": message.content})
            continue
        fields.append({"role": message.role, "content": message.content})
        if message.tool_calls:
            ids = [call.id or f"call_{turn}_{number}" for number, call in enumerate(message.tool_calls)]
            written = message.tool_calls[0].id is None
            fields[-1]["content"] = None if written else message.content or None
            fields[-1]["tool_calls"] = [_call(*each) for each in zip(ids, message.tool_calls, strict=True)]
    return fields


def _call(id: str, call: ToolCall) -> Json:
    return {"id": id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def message_fields(messages: Sequence[Message]) -> list[Json]:
    """Return a dialogue in the format that all servers accept."""
    return [{"role": message.role, "content": message.content} for message in messages]
