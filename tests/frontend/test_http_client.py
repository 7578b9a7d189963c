"""The HTTP client against servers of all kinds: Hive's, stock SGLang, OpenAI-compatible, broken."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import warnings
from dataclasses import replace
from typing import Any

import pytest
import tenacity
from hive_frontend import HttpClient, ModelError, Session, TreeOfThoughts, agent, arun, gen, run
from hive_frontend.client import CallTimeout, Completion, Request, Sampling, sample_seed
from hive_frontend.client.http import transport
from hive_frontend.client.http.prompts import Prompt, PromptCache
from hive_frontend.client.http.streamed import StreamedText
from hive_frontend.client.messages import Message
from hive_frontend.testing import RealCallForbidden, forbid_real_calls
from hive_frontend.wire import derive_seed

from tests.frontend.http_server import Answer, Events, Received, Server


def chat(request: Received) -> Answer:
    choice: dict[str, Any] = {"message": {"content": "hello"}, "finish_reason": "stop"}
    if "custom_params" in request.body:
        choice["meta_info"] = {"hive": {"tokens_replayed": 2, "tokens_generated": 3}, "completion_tokens": 5}
    return 200, {"choices": [choice], "usage": {"completion_tokens": 5}}


def generate(request: Received) -> Answer:
    if isinstance(request.body.get("text"), list):
        each = [
            {"text": text, "sampling_params": settings}
            for text, settings in zip(request.body["text"], request.body["sampling_params"], strict=True)
        ]
        answers = [generate(replace(request, body=body))[1] for body in each]
        return 200, Events([{**answer, "index": index} for index, answer in enumerate(answers)])
    meta: dict[str, Any] = {"completion_tokens": 7, "finish_reason": {"type": "length", "length": 7}}
    if "custom_params" in request.body["sampling_params"]:
        meta["hive"] = {"tokens_replayed": 4, "tokens_generated": 3}
    return 200, {"text": " world", "output_ids": [21, 22, 2], "meta_info": meta}


WORLD = Completion(" world", 3, 4, "length", [ord(char) for char in "<user>q"], [21, 22, 2])
"""What a client makes of the answer to the dialogue `q`: a Hive server's renderer tells the prompt's tokens."""


def render(request: Received) -> Answer:
    """A template of a token per character; all of a prefix is kept."""
    text = "".join(f"<{message['role']}>{message['content']}" for message in request.body["messages"])
    kept = len(request.body.get("prefix_ids", ()))
    settings = {"temperature": 0.25, "stop": ["</s>"], "skip_special_tokens": True}
    return 200, {
        "text": text,
        "kept": kept,
        "ids": [ord(char) for char in text[kept:]],
        "sampling_params": settings,
    }


def ask(*contents: str, sample: int = 0, prompt: str | None = None, **fields: Any) -> Request:
    """A request whose messages are the user's and the model's in turn."""
    roles = ("user", "assistant") * len(contents)
    settings = {name: fields.pop(name) for name in list(fields) if name in Sampling._fields}
    return Request(
        messages=() if prompt else tuple(map(Message, roles, contents)),  # type: ignore[arg-type]
        prompt=prompt,
        sampling=Sampling(**settings),
        seed=7,
        agent="judge",
        session=fields.pop("session", "s-1"),
        state="0.1",
        sample=sample,
        **fields,
    )


MODELS = {"GET /v1/models": lambda request: (200, {"data": [{"id": "the-model"}]})}
HIVE = {
    "POST /hive/agents": lambda request: (200, {}),
    "GET /hive/agents": lambda request: (200, {}),
    "DELETE /hive/sessions/*": lambda request: (200, {}),
    "POST /hive/render": render,
}
HIVE_THAT_REASONS = {
    **HIVE,
    "POST /hive/render": lambda request: (200, {"text": "t", "kept": 0, "ids": [], "sampling_params": None}),
}
SGLANG = {**MODELS, "POST /v1/chat/completions": chat, "POST /generate": generate}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the pauses between attempts."""

    monkeypatch.setattr("tenacity.wait_random_exponential", lambda **_: tenacity.wait_none())


async def test_chat_with_a_hive_server() -> None:
    async with Server({**HIVE, **SGLANG}) as server:
        client = HttpClient(server.url, api_key="secret", tenant="lab")
        await client.register("judge", "s-1")
        request = ask("q", sample=4, temperature=0.5, top_k=5, stop=("\n",), choices=("a", "b"))
        assert await client.complete(request) == WORLD
        assert await client.complete(request._replace(sample=5)) == WORLD
        await client.end_session("s-1")
        await client.aclose()
    first, second = server.asked("/generate")
    assert first.body == {
        "input_ids": [ord(char) for char in "<user>q"],
        "sampling_params": {
            "max_new_tokens": 256,
            "temperature": 0.5,
            "top_k": 5,
            "skip_special_tokens": True,
            "stop": ["</s>", "\n"],
            "regex": "(a|b)",
            "sampling_seed": 7,
            "custom_params": {
                "hive": {
                    "agent": "judge",
                    "session": "s-1",
                    "state": "0.1",
                    "sample": 4,
                    "replay": "stepwise",
                    "tenant": "lab",
                }
            },
        },
    }
    # The server makes the seed of a sample out of the base seed itself.
    assert second.body["sampling_params"]["sampling_seed"] == 7
    assert second.body["sampling_params"]["custom_params"]["hive"]["sample"] == 5
    (rendered,) = server.asked("/hive/render")
    assert rendered.body == {"messages": [{"role": "user", "content": "q"}]}
    (registration,) = server.asked("/hive/agents")
    assert registration.body == {"name": "judge", "session": "s-1"}
    assert server.received[-1].method == "DELETE"
    assert server.received[-1].path == "/hive/sessions/s-1"
    assert all(request.headers["authorization"] == "Bearer secret" for request in server.received)


async def test_a_dialogue_continues_with_the_tokens_that_the_model_wrote() -> None:
    async with Server({**HIVE, **SGLANG}) as server:
        client = HttpClient(server.url)
        for contents in (
            ["q"],
            ["q", " world", "r"],
            ["q", " world", "r", " world", "s"],
            ["q", "edited", "r"],
        ):
            await client.complete(ask(*contents))
        await client.end_session("s-1")
        await client.complete(ask("q", " world", "r"))
        await client.aclose()
    first, second, third, edited, later = (request.body["input_ids"] for request in server.asked("/generate"))
    prefixes = [request.body.get("prefix_ids") for request in server.asked("/hive/render")]
    assert prefixes == [None, [*first, 21, 22, 2], [*second, 21, 22, 2], None, None]
    assert second[: len(first) + 3] == [*first, 21, 22, 2]
    assert third[: len(second) + 3] == [*second, 21, 22, 2]
    assert edited == [ord(char) for char in "<user>q<assistant>edited<user>r"]
    assert later == [ord(char) for char in "<user>q<assistant> world<user>r"]


async def test_concurrent_samples_ask_for_their_prompt_once() -> None:
    async def slowly(request: Received) -> Answer:
        await asyncio.sleep(0.05)
        return render(request)

    async with Server({**HIVE, **SGLANG, "POST /hive/render": slowly}) as server:
        client = HttpClient(server.url)
        calls = [asyncio.ensure_future(client.complete(ask("q", sample=n))) for n in range(5)]
        await asyncio.sleep(0.02)
        # The first call's leaving takes nothing away from the others.
        calls[0].cancel()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        await client.aclose()
    assert isinstance(answers[0], asyncio.CancelledError)
    assert answers[1:] == [WORLD] * 4
    assert len(server.asked("/hive/render")) == 1


async def test_a_server_that_removes_reasoning_gets_chat_requests() -> None:
    async with Server({**HIVE_THAT_REASONS, **SGLANG}) as server:
        client = HttpClient(server.url)
        answer = await client.complete(ask("q", sample=2))
        await client.aclose()
    assert answer == Completion("hello", 3, 2, "stop")
    (request,) = server.asked("/v1/chat/completions")
    assert request.body["messages"] == [{"role": "user", "content": "q"}]
    assert request.body["seed"] == 7
    assert request.body["custom_params"]["hive"]["sample"] == 2


async def test_the_prompt_can_be_looked_at() -> None:
    messages = [Message("system", "s"), Message("user", "q")]
    async with Server({**HIVE, **SGLANG}) as server:
        client = HttpClient(server.url)
        for _ in range(2):
            assert await asyncio.to_thread(client.render, messages) == "<system>s<user>q"
    assert len(server.asked("/hive/render")) == 1
    async with Server(SGLANG) as server:
        with pytest.raises(
            ModelError, match="not a Hive server, and only a Hive server can render a dialogue"
        ):
            await asyncio.to_thread(HttpClient(server.url).render, messages)
    with pytest.raises(ModelError, match=r"POST http://127.0.0.1:\d+/hive/render: .*refused"):
        await asyncio.to_thread(HttpClient(server.url).render, messages)


def test_what_is_known_of_prompts_is_bounded() -> None:
    cache = PromptCache(max_bytes=20_000)
    dialogues = [(Message("user", f"q{number}"),) for number in range(10)]
    for dialogue in dialogues:
        cache.add("s", dialogue, Prompt("text", list(range(1000)), {}))
        cache.add_answer("s", dialogue, "a", [9, 9])
        cache.add_answer("s", dialogue, "a", [3, 5])
        cache.add_answer("s", dialogue, "a", [4, 4])
    known = [cache.get("s", dialogue) is not None for dialogue in dialogues]
    assert known == [False] * 7 + [True] * 3
    longer = (*dialogues[-1], Message("assistant", "a"), Message("user", "r"))
    # Which of several equal texts came first must not matter.
    assert cache.prefix("s", longer) == [*range(1000), 3, 5]
    assert cache.prefix("other", longer) == []
    assert cache.prefix("s", (*dialogues[0], *longer[1:])) == []
    cache.forget("s")
    assert cache.get("s", dialogues[-1]) is None
    assert cache.prefix("s", longer) == []


async def test_raw_completions_with_a_hive_server() -> None:
    async with Server({**HIVE, **SGLANG}) as server, Session(HttpClient(server.url, replay="off"), seed=1):
        reply = await gen("hello", raw=True, max_tokens=7, json_schema={"type": "object"})
    assert (reply, reply.tokens_generated, reply.tokens_replayed, reply.finish_reason) == (
        " world",
        3,
        4,
        "length",
    )
    (request,) = server.asked("/generate")
    parameters = request.body["sampling_params"]
    assert request.body["text"] == "hello"
    assert parameters["max_new_tokens"] == 7
    assert parameters["json_schema"] == '{"type": "object"}'
    assert parameters["custom_params"]["hive"]["replay"] == "off"
    assert 0 <= parameters["sampling_seed"] < 2**63
    assert "temperature" not in parameters


async def test_only_hive_can_draw_without_replacement() -> None:
    async with Server(SGLANG) as server:
        client = HttpClient(server.url, replay="distinct")
        with pytest.raises(
            ModelError, match=r"cannot draw without replacement.*python -m hive.launch_server"
        ):
            await client.complete(ask("q"))
        await client.aclose()
        assert not server.asked("/generate")


async def test_distinct_samples_are_distinct_within_a_session() -> None:
    tags = []
    async with Server({**HIVE, **SGLANG}) as server:
        for replay, tenant, session in (
            ("distinct", None, "s-1"),
            ("distinct", "lab", "s-2"),
            ("stepwise", None, "s-3"),
        ):
            client = HttpClient(server.url, replay=replay, tenant=tenant)
            await client.complete(ask("q")._replace(session=session))
            await client.aclose()
            tag = server.asked("/generate")[-1].body["sampling_params"]["custom_params"]["hive"]
            tags.append((tag.get("tenant"), tag.get("scope")))
    # The server remembers what distinct samples took by tenant and scope, not by session.
    assert tags == [(None, "s-1"), ("lab", "s-2"), (None, None)]


async def test_agents_and_sessions_are_the_tenants() -> None:
    async with Server({**HIVE, **SGLANG}) as server:
        for tenant in (None, "lab"):
            client = HttpClient(server.url, tenant=tenant)
            await client.register("planner", "s-1")
            await client.end_session("s-1")
            await client.aclose()
            assert server.asked("/hive/agents")[-1].headers.get("x-hive-tenant") == tenant
            assert server.asked("/hive/sessions/s-1")[-1].headers.get("x-hive-tenant") == tenant


async def test_json_schema_over_chat() -> None:
    schema = '{"properties": {"b": {}, "a": {}}}'
    async with Server(SGLANG) as server:
        client = HttpClient(server.url)
        await client.complete(ask("q", json_schema=schema))
        await client.aclose()
    sent = server.asked("/v1/chat/completions")[0].body["response_format"]
    assert sent == {"type": "json_schema", "json_schema": {"name": "answer", "schema": json.loads(schema)}}
    # A model writes fields in the order of the schema.
    assert list(sent["json_schema"]["schema"]["properties"]) == ["b", "a"]


async def test_requests_to_stock_sglang_have_no_extensions() -> None:
    async with Server(SGLANG) as server:
        client = HttpClient(server.url + "/v1/")
        await client.register("judge", "s-1")
        replies = [
            await client.complete(ask("q", sample=2)),
            await client.complete(ask(prompt="q", sample=3)),
        ]
        await client.end_session("s-1")
        await client.aclose()
    # Nobody tells the tokens of a text that is gone on with, nor those of a chat.
    world = Completion(" world", 7, 0, "length", (), [21, 22, 2])
    assert replies == [Completion("hello", 5, 0, "stop"), world]
    assert not any("custom_params" in json.dumps(request.body) for request in server.received)
    assert server.asked("/v1/chat/completions")[0].body["seed"] == sample_seed(7, 2)
    assert server.asked("/generate")[0].body["sampling_params"]["sampling_seed"] == sample_seed(7, 3)
    assert len(server.asked("/hive/agents")) == 1
    assert not any(request.method == "DELETE" for request in server.received)


async def test_a_server_is_probed_for_hive_once() -> None:
    for routes, seed in ({**HIVE, **SGLANG}, 7), (SGLANG, sample_seed(7, 1)):
        async with Server(routes) as server:
            client = HttpClient(server.url)
            await asyncio.gather(*(client.complete(ask(prompt="q", sample=1)) for _ in range(3)))
            await client.aclose()
        assert len(server.asked("/hive/agents")) == 1
        sent = server.asked("/generate")[0].body["sampling_params"]
        assert (sent if isinstance(sent, dict) else sent[0])["sampling_seed"] == seed


def test_seeds_of_samples_are_those_that_a_hive_server_derives() -> None:
    assert sample_seed(7, 0) == 7
    assert sample_seed(7, 3) == derive_seed(7, 3)
    assert len({sample_seed(7, sample) for sample in range(1000)}) == 1000


async def test_openai_compatible_servers() -> None:
    def completions(request: Received) -> Answer:
        return 200, {"choices": [{"text": "raw", "finish_reason": "length"}], "usage": {}}

    routes = {"POST /v1/chat/completions": chat, "POST /v1/completions": completions}
    async with Server(routes) as server, Session(HttpClient(server.url, model="named")):
        assert await gen("q") == "hello"
        assert await gen("q", raw=True) == "raw"
        assert await gen("q", raw=True) == "raw"
    assert len(server.asked("/generate")) == 1
    assert server.asked("/v1/completions")[0].body["model"] == "named"
    async with Server(routes) as server, Session(server.url):
        await gen("q")
    assert server.asked("/v1/chat/completions")[0].body["model"] == "default"


@pytest.mark.parametrize("status", [502, 503, 504])
async def test_transient_errors_are_tried_again(status: int) -> None:
    failures = iter([(status, b"busy"), (status, b"busy")])
    async with Server(
        {**SGLANG, "POST /v1/chat/completions": lambda r: next(failures, None) or chat(r)}
    ) as server:
        async with Session(server.url):
            assert await gen("q") == "hello"
        assert len(server.asked("/v1/chat/completions")) == 3
        # Attempts end, and the last answer is what the error tells.
        always = {**SGLANG, "POST /v1/chat/completions": lambda request: (status, b"busy")}
        server.routes = always  # type: ignore[assignment]
        async with Session(HttpClient(server.url, attempts=2)):
            with pytest.raises(ModelError, match=f"the server answered {status}: busy"):
                await gen("q")
        assert len(server.asked("/v1/chat/completions")) == 5


async def test_lost_connections_are_tried_again() -> None:
    async with Server(MODELS) as server:
        url = server.url
    async with Session(HttpClient(url, attempts=2)):
        with pytest.raises(ModelError, match=r"POST http://127.0.0.1:\d+/hive/agents: .*connection"):
            await gen("q")


async def test_a_server_that_is_restarted_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    said, alive = asyncio.Event(), True
    monkeypatch.setattr(transport._log, "warning", lambda *_words: said.set())

    def answer(request: Received) -> Any:
        if not alive:
            raise ConnectionError
        return chat(request)

    async with Server({**SGLANG, "POST /v1/chat/completions": answer}) as server:
        async with Session(HttpClient(server.url, attempts=2)):
            assert await gen("q") == "hello"
            alive = False
            server._server.close()
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(ask_again())
                await said.wait()
                assert not waiting.done()
                alive = True
                port = int(server.url.rpartition(":")[2])
                again = await asyncio.start_server(server._serve, "127.0.0.1", port)
            assert waiting.result() == "hello"
            again.close()
        assert len(server.asked("/v1/chat/completions")) == 3, "one of them was lost with the server"


async def ask_again() -> str:
    return str(await gen("q"))


async def test_the_wait_for_a_server_ends_with_the_time_of_the_call() -> None:
    async with Server(HIVE | SGLANG) as server:
        client = HttpClient(server.url, attempts=2, timeout_s=0.5)
        await client.complete(ask("q"))
        await client.aclose()  # a connection would outlive the server
    with pytest.raises(CallTimeout, match=r"no answer within 0.5 s"):
        await client.complete(ask("p"))
    # Nobody waits to end a session.
    with pytest.raises(ModelError, match=r"/hive/sessions/s: .*connection"):
        await client.end_session("s")
    await client.aclose()


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "temperature is too high", "type": "BadRequestError", "code": 400}},
        {"object": "error", "message": "temperature is too high"},
        {"detail": "temperature is too high"},
        b"temperature is too high",
    ],
)
async def test_refusals_are_not_tried_again_and_say_why(body: Any) -> None:
    refusing = {**HIVE_THAT_REASONS, **MODELS, "POST /v1/chat/completions": lambda request: (400, body)}
    async with Server(refusing) as server, Session(server.url):
        with pytest.raises(ModelError, match="the server answered 400: temperature is too high") as caught:
            await gen("q")
    assert caught.value.status == 400
    assert len(server.asked("/v1/chat/completions")) == 1


@pytest.mark.parametrize("body", [b"<html>", [1], {"choices": []}, {"choices": [{"text": 3}]}])
async def test_unusable_answers(body: Any) -> None:
    routes = {**MODELS, "POST /v1/chat/completions": lambda request: (200, body)}
    async with Server(routes) as server, Session(server.url):
        with pytest.raises(ModelError, match="answer"):
            await gen("q")


async def test_a_slow_server_gets_no_second_request() -> None:
    async def slow(request: Received) -> Answer:
        await asyncio.sleep(60)
        raise AssertionError

    async with Server({**MODELS, "POST /v1/chat/completions": slow}) as server:
        client = HttpClient(server.url, timeout_s=0.1)
        with pytest.raises(CallTimeout, match=r"no answer within 0.1 s \(timeout_s\)"):
            await client.complete(ask("q"))
        await asyncio.wait_for(server.hung_up.wait(), 5)
        with pytest.raises(CallTimeout, match=r"no answer within 0.2 s"):
            await client.complete(ask("q", timeout_s=0.2))
        await client.aclose()
        assert len(server.asked("/v1/chat/completions")) == 2


async def test_a_call_says_how_often_it_is_tried_and_which_model_it_wants() -> None:
    def busy(request: Received) -> Answer:
        return 503, b"busy"

    async with Server({**MODELS, "POST /v1/chat/completions": busy}) as server:
        client = HttpClient(server.url, attempts=4)
        with pytest.raises(ModelError, match="503: busy"):
            await client.complete(ask("q", attempts=2, model="another"))
        for field in ({"attempts": 0}, {"timeout_s": 0.0}):
            with pytest.raises(ValueError, match=f"{next(iter(field))} must be"):
                await client.complete(ask("q", **field))
        await client.aclose()
    assert [request.body["model"] for request in server.asked("/v1/chat/completions")] == ["another"] * 2


async def test_adapters() -> None:
    cards = [
        {"id": "base", "owned_by": "sglang"},
        {"id": "poet", "owned_by": "sglang", "parent": "base"},
    ]
    listing = {"GET /v1/models": lambda request: (200, {"data": cards})}
    async with Server({**HIVE, **SGLANG, **listing}) as server:
        client = HttpClient(server.url, model="base")
        for model in (None, "base", "poet", "base:poet"):
            await client.complete(ask("q", model=model))
            await client.complete(ask(prompt="q", model=model))
        with pytest.raises(ModelError, match=r"model: .* has no model 'critic'; it has 'base', 'poet'"):
            await client.complete(ask("q", model="critic"))
        await client.aclose()
    adapters = [request.body.get("lora_path") for request in server.asked("/generate")]
    assert adapters == [None] * 4 + ["poet"] * 4
    async with Server({**SGLANG, **listing}) as server:
        client = HttpClient(server.url)
        for model in (None, "poet"):
            await client.complete(ask("q", model=model))
        await client.aclose()
    assert [request.body["model"] for request in server.asked("/v1/chat/completions")] == [
        "base",
        "base:poet",
    ]


@pytest.mark.parametrize("incremental", [False, True])
async def test_streams_of_generate(incremental: bool) -> None:
    pieces = ["Red", " and", " gr", "een\u2028, 1", "2", "\n\nThe"]

    def stream(request: Received) -> Answer:
        assert request.body["stream"]
        assert request.body["sampling_params"]["no_stop_trim"]
        events: list[Any] = []
        for number in range(1, len(pieces) + 1):
            shown = slice(number - 1 if incremental else 0, number)
            meta: dict[str, Any] = {"completion_tokens": number, "finish_reason": None}
            ids = list(range(1, 7))[shown]
            events.append({"text": "".join(pieces[shown]), "output_ids": ids, "meta_info": meta})
        meta["finish_reason"] = {"type": "stop", "matched": "\n\n"}
        meta["hive"] = {"tokens_replayed": 2, "tokens_generated": 4}
        # As a server writes it that does not escape what JSON need not escape.
        lines = [b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n" for event in events]
        return 200, Events([*lines, b": a comment\n\n", b"data: [DONE]\n\n"])

    async with Server({**HIVE, **SGLANG, "POST /generate": stream}) as server:
        client = HttpClient(server.url)
        heard: list[str] = []
        answer = await client.complete(ask("q", stop=("12\n3", "\n\n")), heard.append)
        assert answer[:4] == ("Red and green\u2028, 12", 4, 2, "stop")
        assert answer.output_ids == [1, 2, 3, 4, 5, 6]
        assert heard == ["Red", " and", " gr", "een\u2028, ", "12"]
        server.routes["POST /generate"] = generate
        await client.complete(ask("q", answer.text, "r"))
        await client.aclose()
    assert server.asked("/hive/render")[1].body["prefix_ids"][-6:] == [1, 2, 3, 4, 5, 6]


async def test_streams_of_openai_endpoints() -> None:
    def chat_stream(request: Received) -> Answer:
        assert request.body["stream"]
        assert "no_stop_trim" not in request.body
        deltas = [
            {"role": "assistant", "content": ""},
            {"content": "a"},
            {"content": None},
            {"content": " b"},
        ]
        events = [{"choices": [{"delta": delta, "finish_reason": None}]} for delta in deltas]
        end = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
        return 200, Events(
            [*events, end, {"choices": [], "usage": {"completion_tokens": 2}}, b"data: [DONE]\n\n"]
        )

    def text_stream(request: Received) -> Answer:
        events = [{"choices": [{"text": piece, "finish_reason": None}]} for piece in ("c", " d")]
        return 200, Events([*events, {"choices": [{"text": "", "finish_reason": "length"}]}])

    routes = {"POST /v1/chat/completions": chat_stream, "POST /v1/completions": text_stream}
    async with Server(routes) as server:
        client = HttpClient(server.url)
        heard: list[str] = []
        answer = await client.complete(ask("q", stop=("bc",)), heard.append)
        assert (answer, heard) == (Completion("a b", 2, 0, "stop"), ["a", " ", "b"])
        heard.clear()
        answer = await client.complete(ask(prompt="q"), heard.append)
        assert (answer, heard) == (Completion("c d", 0, 0, "length"), ["c", " d"])
        await client.aclose()


async def test_streams_are_tried_again_until_a_piece_came() -> None:
    event = {"choices": [{"delta": {"content": "a"}, "finish_reason": None}]}
    end = {"choices": [{"delta": {"content": "b"}, "finish_reason": "stop"}]}
    answers = iter(
        [
            (503, b"busy"),
            (200, Events([], then="drop")),
            (200, Events([event, end])),
            (200, Events([event], then="drop")),
            (200, Events([event])),
            (200, Events([event, {"error": {"message": "out of memory", "code": 507}}])),
            (200, Events([b"data: <html>\n\n"])),
            (400, {"message": "temperature is too high"}),
        ]
    )
    async with Server({**MODELS, "POST /v1/chat/completions": lambda request: next(answers)}) as server:
        client = HttpClient(server.url)
        heard: list[str] = []
        assert (await client.complete(ask("q"), heard.append)).text == "ab"
        assert heard == ["a", "b"]
        for message in (
            "/v1/chat/completions: .*closed|/v1/chat/completions: .*incomplete",
            "the stream ended before the answer was complete",
            "the server ended the stream: out of memory",
            "the stream has a line that is not a JSON object: b'<html>'",
            "the server answered 400: temperature is too high",
        ):
            with pytest.raises(ModelError, match=message):
                await client.complete(ask("q"), heard.append)
        await client.aclose()
    assert len(server.asked("/v1/chat/completions")) == 8


async def test_cancelling_a_stream_closes_the_connection() -> None:
    event = {"choices": [{"delta": {"content": "a"}, "finish_reason": None}]}
    routes = {**MODELS, "POST /v1/chat/completions": lambda request: (200, Events([event], then="hang"))}
    async with Server(routes) as server:
        client = HttpClient(server.url)
        heard = asyncio.Event()
        call = asyncio.create_task(client.complete(ask("q"), lambda piece: heard.set()))
        await asyncio.wait_for(heard.wait(), 5)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.wait_for(server.hung_up.wait(), 5)
        await client.aclose()


@pytest.mark.parametrize(
    ("texts", "matched", "heard"),
    [
        (["a", "aa", "aaab"], "ab", ["a", "a"]),
        (["x", "xa", "xaa"], None, ["x", "a", "a"]),
        (["one", "one END two"], "END", ["one", " "]),
        (["one\n", "one\n\nEND"], "\n\n", ["one"]),
        (["one\n", "one\ntwo"], None, ["one", "\ntwo"]),
        ([""], None, []),
    ],
)
def test_what_a_stop_string_may_take_away_is_held_back(
    texts: list[str], matched: str | None, heard: list[str]
) -> None:
    pieces: list[str] = []
    streamed = StreamedText(pieces.append, ("END", "\n\n", "ab"))
    for text in texts:
        streamed.grow(text)
    assert streamed.finish(matched) == "".join(pieces)
    assert pieces == heard


async def test_real_calls_can_be_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Server({**HIVE, **SGLANG}) as server:
        client = HttpClient(server.url)
        with forbid_real_calls():
            with pytest.raises(
                RealCallForbidden, match=r"POST .*/hive/generate: .* forbid_real_calls\(\) is active"
            ):
                await client.complete(ask("q"))
            with pytest.raises(RealCallForbidden, match="/hive/agents"):
                await client.register("judge", "s-1")
            with pytest.raises(RealCallForbidden, match="ScriptedModel"):
                client.render([Message("user", "q")])
        monkeypatch.setenv("HIVE_FORBID_REAL_CALLS", "1")
        with pytest.raises(RealCallForbidden, match="HIVE_FORBID_REAL_CALLS is set"):
            await client.complete(ask("q"), print)
        assert server.received == []
        monkeypatch.setenv("HIVE_FORBID_REAL_CALLS", "0")
        assert (await client.complete(ask("q"))).text == " world"
        await client.aclose()


async def test_cancelling_closes_the_connection() -> None:
    began = asyncio.Event()

    async def endless(request: Received) -> Answer:
        began.set()
        await asyncio.sleep(60)
        raise AssertionError

    @agent
    async def program() -> None:
        await gen("q")

    async with Server({**HIVE, **MODELS, "POST /generate": endless}) as server:
        task = asyncio.create_task(arun(program, model=server.url))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.hung_up.wait(), 5)
        assert any(request.method == "DELETE" for request in server.received)


async def test_a_session_that_cannot_be_ended_does_not_lose_its_results(
    caplog: pytest.LogCaptureFixture,
) -> None:
    routes = {**HIVE, **SGLANG, "DELETE /hive/sessions/*": lambda request: (500, {"error": "no"})}

    @agent
    async def program() -> str:
        return await gen("q")

    async with Server(routes) as server:
        with caplog.at_level(logging.WARNING, logger="hive_frontend.search.registrations"):
            assert (await arun(program, model=server.url)).value == " world"
    assert "could not be told that session" in caplog.text


async def test_a_search_registers_each_agent_once() -> None:
    @agent(supervisor=TreeOfThoughts(branch_at="ask", branching=6))
    async def program() -> str:
        answer = await gen("q", name="ask")
        return answer + await gen("r", agent="other")

    async with Server({**HIVE, **SGLANG}) as server:
        result = await arun(program, model=server.url)
    assert [request.body["name"] for request in server.asked("/hive/agents")] == ["program", "other"]
    assert not server.asked("/v1/models")
    assert len(server.asked("/hive/render")) == 2
    assert result.totals.tokens_replayed == 48


async def test_one_client_for_several_loops() -> None:
    @agent
    async def program() -> str:
        return await gen("q")

    async with Server({**HIVE, **SGLANG}) as server:
        client = HttpClient(server.url)
        for _ in range(2):
            # A loop of its own in a thread of its own, as in a notebook.
            result = await asyncio.to_thread(run, program, model=client)
            assert result.value == " world"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"url": "localhost:30000"}, "the URL of a server must look like"),
        ({"url": "ftp://host"}, "the URL of a server must look like"),
        ({"url": "http://host", "replay": "always"}, 'replay must be "stepwise", "distinct" or "off"'),
        ({"url": "http://host", "attempts": 0}, "attempts must be an integer of at least 1"),
        ({"url": "http://host", "tenant": "a b"}, "tenant must be 1 to 128 characters"),
    ],
)
def test_bad_settings(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HttpClient(**arguments)


async def test_run_closes_the_connections_of_models_that_agents_have_for_themselves() -> None:
    async with Server({**HIVE, **SGLANG}) as server:

        @agent(model=server.url)
        async def program() -> str:
            return await gen("hello", raw=True)

        gc.collect()  # What other tests left behind is not told here.
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", ResourceWarning)
            result = await asyncio.to_thread(run, program)
            gc.collect()
        assert result.value == " world"
        assert [str(each.message) for each in told if each.category is ResourceWarning] == []
