"""Tools over HTTP: in the format of servers that parse calls, and as text at all others."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hive_frontend import (
    Dialogue,
    HttpClient,
    ModelError,
    TreeOfThoughts,
    act,
    agent,
    arun,
    gather,
    gen,
    stream,
)

from tests.frontend.http_server import Answer, Events, Lines, Received, Server
from tests.frontend.test_http_client import HIVE, MODELS, SGLANG
from tests.frontend.test_other_servers import CHAT, owned_by


def weather(city: str) -> str:
    """The weather in a city."""
    return f"{city}: 21 degrees"


@agent
async def assistant(question: str, tool_format: Any = "auto", **settings: Any) -> Any:
    return await act(question, tools=[weather], tool_format=tool_format, **settings)


ROME = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
TEXT = '{"calls": [{"name": "weather", "arguments": {"city": "Rome"}}]}'


def choice(content: str | None, calls: list[Any] | None = None) -> Answer:
    message = {"content": content} if calls is None else {"content": content, "tool_calls": calls}
    return 200, {
        "choices": [{"message": message, "finish_reason": "stop"}],
        "usage": {"completion_tokens": 4},
    }


def native(request: Received) -> Answer:
    """A server that parses calls: it calls the tool, and then answers."""
    assert request.body["tools"][0]["function"]["name"] == "weather"
    if request.body["messages"][-1]["role"] == "tool":
        return choice(f"It is {request.body['messages'][-1]['content']}.")
    return choice(None, [ROME])


def as_text(request: Received) -> Answer:
    """A server that knows no tools, but schemas."""
    assert "tools" not in request.body
    assert request.body["response_format"]["type"] == "json_schema"
    told = request.body["messages"][-1]["content"]
    return choice(json.dumps({"answer": told}) if told.startswith("Result of") else TEXT)


async def answer(routes: dict[str, Any], *args: Any, **kwargs: Any) -> tuple[Any, Server]:
    async with Server(routes) as server:
        client = HttpClient(server.url)
        result = await arun(assistant, "How is Rome?", *args, model=client, seed=1, **kwargs)
        await client.aclose()
    return result, server


async def test_openai_gets_tools_and_results_in_its_format() -> None:
    result, server = await answer({**owned_by("openai"), f"POST {CHAT}": native})
    assert result.value == "It is Rome: 21 degrees."
    first, second = (request.body for request in server.asked(CHAT))
    parameters = {"properties": {"city": {"type": "string"}}, "required": ["city"], "type": "object"}
    assert (
        first["tools"]
        == second["tools"]
        == [
            {
                "type": "function",
                "function": {
                    "name": "weather",
                    "description": "The weather in a city.",
                    "parameters": {**parameters, "additionalProperties": False},
                },
            }
        ]
    )
    assert (first["tool_choice"], "parallel_tool_calls" in first) == ("auto", False)
    assert second["messages"] == [
        {"role": "user", "content": "How is Rome?"},
        {"role": "assistant", "content": None, "tool_calls": [ROME]},
        {"role": "tool", "tool_call_id": "c1", "content": "Rome: 21 degrees"},
    ]
    assert result.totals.tokens_generated == 8


async def test_forced_tools_and_single_calls() -> None:
    routes = {**owned_by("openai"), f"POST {CHAT}": native}
    _, server = await answer(routes, tool_choice="weather", parallel=False)
    first, second = (request.body for request in server.asked(CHAT))
    assert first["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
    assert (second["tool_choice"], second["parallel_tool_calls"]) == ("auto", False)


async def test_a_stream_has_the_calls_in_pieces() -> None:
    def streamed(request: Received) -> Answer:
        def delta(**fields: Any) -> Any:
            return {"choices": [{"index": 0, "delta": fields}]}

        end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        if request.body["messages"][-1]["role"] == "tool":
            return 200, Events([delta(content="It is "), delta(content="warm."), end])
        pieces = [
            delta(content="Let me see."),
            delta(tool_calls=[{"index": 0, "id": "c1", "function": {"name": "weather", "arguments": ""}}]),
            delta(tool_calls=[{"index": 0, "function": {"arguments": '{"city": '}}]),
            delta(tool_calls=[{"index": 1, "id": "c2", "function": {"name": "weather", "arguments": "{}"}}]),
            delta(tool_calls=[{"index": 0, "function": {"arguments": '"Rome"}'}}]),
        ]
        return 200, Events([*pieces, end])

    async with Server({**owned_by("openai"), f"POST {CHAT}": streamed}) as server:
        client = HttpClient(server.url)
        async with stream(assistant, "How is Rome?", model=client) as live:
            text = [piece.text async for piece in live]
        await client.aclose()
    assert text == ["Let me see.", "It is ", "warm."]
    assert live.result.tree.nodes[2].results == [
        "Rome: 21 degrees",
        "Error: invalid arguments: city: Field required",
    ]


def sglang(parser: str | None) -> dict[str, Any]:
    return {**owned_by("sglang"), "GET /server_info": lambda request: (200, {"tool_call_parser": parser})}


@pytest.mark.parametrize(
    ("routes", "handler"),
    [
        (sglang("qwen25"), native),
        (sglang(None), as_text),
        (owned_by("sglang"), as_text),
        (owned_by("vllm"), native),
        (MODELS, native),
    ],
)
async def test_the_format_is_what_the_server_parses(
    routes: dict[str, Any], handler: Callable[[Received], Answer]
) -> None:
    result, _ = await answer({**routes, f"POST {CHAT}": handler})
    assert "Rome: 21 degrees" in result.value


async def test_the_format_can_be_forced() -> None:
    result, _ = await answer({**sglang("qwen25"), f"POST {CHAT}": as_text}, "grammar")
    assert "Rome: 21 degrees" in result.value
    result, _ = await answer({**sglang(None), f"POST {CHAT}": native}, "native")
    assert "Rome: 21 degrees" in result.value


async def test_a_server_that_refuses_tools_gets_text_from_then_on(caplog: pytest.LogCaptureFixture) -> None:
    def refusing(request: Received) -> Answer:
        if "tools" in request.body:
            return 400, {"message": '"auto" tool choice requires --enable-auto-tool-choice'}
        return as_text(request)

    routes = {**owned_by("vllm"), f"POST {CHAT}": refusing}
    result, server = await answer(routes)
    assert "Rome: 21 degrees" in result.value
    assert ["tools" in request.body for request in server.asked(CHAT)] == [True, False, False]
    assert [record.message.partition("; ")[2] for record in caplog.records] == [
        "the model is made to write its calls of tools as JSON instead"
    ]
    for arguments, owner in ((["native"], "vllm"), ([], "openai")):
        with pytest.raises(ModelError, match="tool choice requires"):
            await answer({**routes, **owned_by(owner)}, *arguments)


async def test_a_hive_server_parses_calls_in_its_chats() -> None:
    """Its other route renders dialogues of text only, and answers all other calls."""

    def lines(request: Received) -> Answer:
        async def each() -> Any:
            yield {"prompt": {"kept": 0, "ids": [1]}}
            meta = {"completion_tokens": 1, "finish_reason": {"type": "stop"}}
            yield {"index": 0, "text": "Plain.", "output_ids": [2], "meta_info": meta}

        return 200, Lines(each())

    @agent
    async def program() -> tuple[str, str]:
        return await act("How is Rome?", tools=[weather]), await gen("And you?")

    routes = {**HIVE, **SGLANG, **sglang("qwen25"), f"POST {CHAT}": native, "POST /hive/generate": lines}
    async with Server(routes) as server:
        client = HttpClient(server.url)
        result = await arun(program, model=client, seed=1)
        await client.aclose()
    assert result.value == ("It is Rome: 21 degrees.", "Plain.")
    bodies = [request.body for request in server.asked(CHAT)]
    assert [body["custom_params"]["hive"]["state"] for body in bodies] == ["0", "0.0.0"]
    assert len(server.asked("/hive/generate")) == 1


async def test_a_dialogue_with_calls_goes_on_without_tools() -> None:
    @agent
    async def program() -> str:
        talk = Dialogue().user("How is Rome?")
        await act(talk, tools=[weather])
        return await gen(talk.user("Sure?"))

    for routes, is_native in ((sglang("qwen25"), True), (sglang(None), False)):

        def handler(request: Received) -> Answer:
            if request.body["messages"][-1]["content"] == "Sure?":
                return choice("Yes.")
            return (native if is_native else as_text)(request)  # noqa: B023

        async with Server({**routes, f"POST {CHAT}": handler}) as server:
            client = HttpClient(server.url)
            assert (await arun(program, model=client)).value == "Yes."
            await client.aclose()
        last = server.asked(CHAT)[-1].body
        roles = ["user", "assistant", *(["tool"] if is_native else ["user"]), "assistant", "user"]
        assert [message["role"] for message in last["messages"]] == roles
        assert "tools" not in last


async def test_samples_of_one_state_are_merged() -> None:
    @agent(supervisor=TreeOfThoughts(branch_at="act", branching=3, limit=None))
    async def program() -> str:
        return await act("How is Rome?", tools=[weather])

    def several(request: Received) -> Answer:
        status, body = native(request)[:2]
        return status, {**body, "choices": body["choices"] * request.body.get("n", 1)}

    async with Server({**owned_by("openai"), f"POST {CHAT}": several}) as server:
        client = HttpClient(server.url)
        # The first calls find out what the server is, each in its own time.
        await arun(program, model=client)
        before = len(server.asked(CHAT))
        await arun(program, model=client)
        await client.aclose()
    assert server.asked(CHAT)[before].body["n"] == 3


async def test_calls_with_different_tools_are_not_merged() -> None:
    async with Server({**owned_by("openai"), f"POST {CHAT}": lambda request: choice("hm")}) as server:
        client = HttpClient(server.url)

        @agent
        async def program() -> list[str]:
            return await gather(
                gen("q"), gen("q", tools=[weather]), gen("q", tools=[weather], tool_choice="none")
            )

        await arun(program, model=client)
        await client.aclose()
    choices = sorted(str(request.body.get("tool_choice")) for request in server.asked(CHAT))
    assert choices == ["None", "auto", "none"]
