"""Calls of tools as text, for models and servers without a format of their own for them.

The tools are written into the system message, and a JSON schema makes the model answer with calls,
`{"calls": [{"name": "look_up", "arguments": {"word": "tea"}}]}`, or with its final answer, `{"answer": "..."}`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from hive_frontend.client.contract import Client, Completion, OnText, Request
from hive_frontend.client.json_text import Json, parsed
from hive_frontend.client.messages import Message, ToolCall
from hive_frontend.client.structured import InvalidAnswer
from hive_frontend.client.tools import FINAL_ANSWER, Tools, ToolSchema

_MAX_CALLS = 8
"""Most calls in one answer: without a bound, a small model may write calls until `max_tokens`."""


async def complete(client: Client, request: Request, on_text: OnText | None) -> Completion:
    """Return the answer of a client to a request that may have tools."""
    if _is_native(client, request):
        return await client.complete(request, on_text)
    return await complete_as_text(client, request, on_text)


def answer_now(client: Client, request: Request) -> Completion | None:
    """Return the answer of a client to a request that may have tools; None if it must be waited for."""
    if _is_native(client, request):
        return client.answer_now(request)
    done = client.answer_now(as_text(request))
    return None if done is None else read_calls(request, done)


async def complete_as_text(client: Client, request: Request, on_text: OnText | None) -> Completion:
    """Return the answer of a client that is asked to write calls as text."""
    # The model's JSON is not the text of the answer, which therefore arrives in one piece.
    streams = request.tools is None
    done = read_calls(request, await client.complete(as_text(request), on_text if streams else None))
    if on_text is not None and not streams and done.text:
        on_text(done.text)
    return done


def _is_native(client: Client, request: Request) -> bool:
    tools = request.tools
    if tools is not None and tools.format != "auto":
        return tools.format == "native"
    return client.takes_tools or not uses_tools(request)


def uses_tools(request: Request) -> bool:
    """Return whether a request has tools, or a dialogue in which tools were called."""
    return request.tools is not None or any(
        message.tool_calls or message.role == "tool" for message in request.messages
    )


def as_text(request: Request) -> Request:
    """Return the request without tools: they are text of the prompt, and a schema of the answer."""
    tools = request.tools
    messages = tuple(without_tools(request.messages))
    if tools is None:
        return request._replace(messages=messages)
    told = _instructions(tools.schemas)
    if messages[0].role == "system":
        messages = (Message("system", f"{messages[0].content}\n\n{told}"), *messages[1:])
    else:
        messages = (Message("system", told), *messages)
    sampling = request.sampling._replace(json_schema=_schema(tools))
    return request._replace(messages=messages, sampling=sampling, tools=None)


def without_tools(messages: Sequence[Message]) -> Iterator[Message]:
    """Yield the turns of a dialogue, with calls and results as text of the assistant and the user."""
    results: list[str] = []
    called: list[ToolCall] = []
    for message in messages:
        if message.role == "tool":
            by_id = [call for call in called if call.id == message.tool_call_id] or called
            name = by_id[0].name if by_id else "tool"
            called = [call for call in called if call is not (by_id[0] if by_id else None)]
            results.append(f"Result of {name}: {message.content}")
            continue
        if results:
            if message.role == "user":
                # Many chat templates refuse two turns of the user in a row.
                message = Message("user", "\n".join([*results, "", message.content]))
            else:
                yield Message("user", "\n".join(results))
            results = []
        called = list(message.tool_calls)
        if called and called[0].id is not None:
            text = calls_as_text(called)
            message = Message("assistant", f"{message.content}\n{text}" if message.content else text)
        yield Message(message.role, message.content)
    if results:
        yield Message("user", "\n".join(results))


def calls_as_text(calls: Sequence[ToolCall]) -> str:
    """Return calls as the schema makes a model write them."""
    listed = []
    for call in calls:
        arguments = parsed(call.arguments.encode())
        listed.append({"name": call.name, "arguments": call.arguments if arguments is None else arguments})
    return json.dumps({"calls": listed})


def read_calls(request: Request, done: Completion) -> Completion:
    """Return an answer to `as_text(request)` with the calls, or the final answer, that its text has.

    Raises:
        InvalidAnswer: if the text has neither, because it was cut off.
    """
    if request.tools is None:
        return done
    found = parsed(done.text.encode())
    match found:
        case {"calls": [*calls]} if calls and all(map(_is_call, calls)):
            read = [ToolCall(None, call["name"], json.dumps(call["arguments"])) for call in calls]
            return done._replace(tool_calls=tuple(read))
        case {"answer": str(answer)}:
            return done._replace(text=answer)
    if found is None and not done.text.lstrip().startswith("{"):
        # The server ignores schemas. What the model says without any form is its answer.
        return done
    why = "was cut off at max_tokens" if done.finish_reason == "length" else "has neither calls nor an answer"
    raise InvalidAnswer(
        f"the model's answer {why}: {done.text[:500]!r}; raise max_tokens, or bound the arguments of the tools",
        text=done.text,
    )


def _is_call(call: Any) -> bool:
    return isinstance(call, dict) and isinstance(call.get("name"), str) and "arguments" in call


@lru_cache(maxsize=256)
def _instructions(schemas: tuple[ToolSchema, ...]) -> str:
    tools = "\n".join(
        json.dumps({"name": name, "description": told, "parameters": json.loads(parameters)})
        for name, told, parameters in schemas
    )
    end = 'write {"answer": "..."}'
    if any(name == FINAL_ANSWER for name, _, _ in schemas):
        end = f"call {FINAL_ANSWER}"
    return (
        f"You can call these tools:\n{tools}\n\nWrite JSON only. Call tools with "
        f'{{"calls": [{{"name": "...", "arguments": {{...}}}}]}}. When you know the answer, {end}.'
    )


@lru_cache(maxsize=256)
def _schema(tools: Tools) -> str:
    """Return the JSON schema of the answers that are allowed."""
    forms: list[Json] = []
    definitions: Json = {}
    if tools.choice != "none":
        calls = []
        for name, _, parameters in tools.schemas:
            if tools.choice in ("auto", "required", name):
                arguments = _renamed(json.loads(parameters), name)
                definitions |= arguments.pop("$defs", {})
                calls.append(_object({"name": {"enum": [name]}, "arguments": arguments}))
        most = _MAX_CALLS if tools.parallel else 1
        items = calls[0] if len(calls) == 1 else {"anyOf": calls}
        forms.append(_object({"calls": {"type": "array", "items": items, "minItems": 1, "maxItems": most}}))
    if tools.choice in ("auto", "none"):
        forms.append(_object({"answer": {"type": "string"}}))
    schema = forms[0] if len(forms) == 1 else {"anyOf": forms}
    return json.dumps({**schema, "$defs": definitions} if definitions else schema)


def _object(properties: Json) -> Json:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _renamed(schema: Any, prefix: str) -> Any:
    """Return a schema whose definitions begin with `prefix`, so that those of several tools can stand together."""
    if isinstance(schema, list):
        return [_renamed(each, prefix) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {}
    for key, value in schema.items():
        if key == "$ref" and isinstance(value, str):
            value = value.replace("#/$defs/", f"#/$defs/{prefix}.", 1)
        elif key == "$defs":
            value = {f"{prefix}.{name}": _renamed(each, prefix) for name, each in value.items()}
        else:
            value = _renamed(value, prefix)
        found[key] = value
    return found
