"""The client against servers that are not Hive's: what each of them has of its own."""

from __future__ import annotations

import json
import time
from email.utils import formatdate
from typing import Any

import pytest
from hive_frontend import HttpClient, InvalidAnswer, ModelError, Session, agent, gen
from hive_frontend.client.http import transport

from tests.frontend.http_server import Answer, Received, Server
from tests.frontend.test_http_client import HIVE, MODELS, SGLANG, ask, chat

CHAT = "/v1/chat/completions"


def owned_by(owner: str) -> dict[str, Any]:
    return {"GET /v1/models": lambda request: (200, {"data": [{"id": "m", "owned_by": owner}]})}


def saying(*texts: str) -> Any:
    """A chat endpoint that gives these answers, the last one for good."""
    left = list(texts)

    def answer(request: Received) -> Answer:
        text = left.pop(0) if len(left) > 1 else left[0]
        return 200, {"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}

    return answer


@pytest.mark.parametrize("status", [429, 500, 503, 529])
async def test_a_busy_server_says_how_long_to_wait(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    patience = transport._RetryWait.__call__

    def impatient(*given: Any) -> float:
        waits.append(patience(*given))
        return 0.0

    monkeypatch.setattr(transport._RetryWait, "__call__", impatient)
    later = formatdate(time.time() + 100, usegmt=True)
    answers = iter([(status, b"busy", "7"), (status, b"busy", later), (status, b"busy", "soon")])

    def busy(request: Received) -> Any:
        found = next(answers, None)
        return chat(request) if found is None else found

    async with Server({**MODELS, f"POST {CHAT}": busy}) as server:
        client = HttpClient(server.url, model="m")
        client._is_hive = False
        assert (await client.complete(ask("q"))).text == "hello"
        await client.aclose()
    assert waits[0] >= 7
    assert 90 < waits[1] <= 100
    assert waits[2] < 7


@pytest.mark.parametrize("status", [501, 505, 507])
async def test_what_a_server_will_never_do_is_not_tried_again(status: int) -> None:
    async with Server({**MODELS, f"POST {CHAT}": lambda request: (status, b"no")}) as server:
        client = HttpClient(server.url)
        with pytest.raises(ModelError, match=f"{status}: no"):
            await client.complete(ask("q"))
        await client.aclose()
    assert len(server.asked(CHAT)) == 1


@pytest.mark.parametrize(
    "answer", [(200, b"<html>"), (401, {"error": "who?"}), (403, b""), (302, b""), (418, b"")]
)
async def test_what_a_server_makes_of_hives_routes_decides_nothing(answer: Answer) -> None:
    odd = {
        "POST /hive/agents": lambda request: answer,
        "GET /hive/agents": lambda request: answer,
        "DELETE /hive/sessions/*": lambda request: answer,
    }
    async with Server({**SGLANG, **odd}) as server, Session(HttpClient(server.url, attempts=1)):
        assert await gen("q") == "hello"
        assert await gen("q", raw=True) == " world"
    assert not any(request.method == "DELETE" for request in server.received)


async def test_what_a_server_makes_of_other_probes_decides_nothing() -> None:
    def forbidden(request: Received) -> Answer:
        return 403, b"not for you"

    odd = {
        "POST /hive/generate": forbidden,
        "GET /hive/agents": forbidden,
        "GET /v1/models": forbidden,
        f"POST {CHAT}": chat,
    }
    async with Server(odd) as server:
        client = HttpClient(server.url, model="m")
        assert (await client.complete(ask("q"))).text == "hello"
        await client.aclose()
    assert server.asked(CHAT)[0].body["model"] == "m"


async def test_a_hive_server_that_refuses_an_agent_is_heard() -> None:
    routes = {**HIVE, "POST /hive/agents": lambda request: (400, {"error": {"message": "no such tenant"}})}
    async with Server({**routes, **SGLANG}) as server, Session(HttpClient(server.url)):
        with pytest.raises(ModelError, match="no such tenant"):
            await gen("q")


async def test_grammars_as_each_server_spells_them() -> None:
    seen = {}
    for owner in ("sglang", "vllm", "openai", "somebody"):
        async with Server({**owned_by(owner), f"POST {CHAT}": saying("yes")}) as server:
            client = HttpClient(server.url)
            for grammar in (
                {"choices": ("yes", "no")},
                {"regex": "[a-z]+"},
                {"json_schema": '{"type": "object"}'},
            ):
                await client.complete(ask("q", **grammar))
            await client.aclose()
        known = ("regex", "structured_outputs", "response_format")
        seen[owner] = [
            {name: request.body[name] for name in known if name in request.body}
            for request in server.asked(CHAT)
        ]
    schema = {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": {"type": "object"}},
        }
    }
    assert seen["sglang"] == seen["somebody"] == [{"regex": "(yes|no)"}, {"regex": "[a-z]+"}, schema]
    assert seen["vllm"] == [
        {"structured_outputs": {"choice": ["yes", "no"]}},
        {"structured_outputs": {"regex": "[a-z]+"}},
        schema,
    ]
    only = [
        each["response_format"]["json_schema"]["schema"]["properties"]["answer"]
        for each in seen["openai"][:2]
    ]
    assert only == [{"type": "string", "enum": ["yes", "no"]}, {"type": "string", "pattern": "[a-z]+"}]
    assert seen["openai"][2] == schema


async def test_openais_answers_are_taken_out_of_their_objects() -> None:
    routes = {**owned_by("openai"), f"POST {CHAT}": saying(json.dumps({"answer": "no"}))}
    async with Server(routes) as server:
        client = HttpClient(server.url)
        heard: list[str] = []
        assert (await client.complete(ask("q", choices=("yes", "no")))).text == "no"
        assert (await client.complete(ask("q", choices=("yes", "no")), heard.append)).text == "no"
        await client.aclose()
    assert heard == ["no"]


async def test_an_answer_outside_of_the_grammar_is_an_error() -> None:
    async with Server({**MODELS, f"POST {CHAT}": saying("Sure! yes")}) as server:
        client = HttpClient(server.url)
        for grammar, what in ({"choices": ("yes", "no")}, "choices"), ({"regex": "yes|no"}, "regex"):
            with pytest.raises(
                InvalidAnswer, match=f"{what} does not allow the answer 'Sure! yes'"
            ) as caught:
                await client.complete(ask("q", **grammar))
            assert caught.value.text == "Sure! yes"
        # What no engine of Python's can read is left to the server.
        assert (await client.complete(ask("q", regex=r"\p{L}+"))).text == "Sure! yes"
        await client.aclose()
    assert len(server.asked(CHAT)) == 3, "nobody asked for another try"


async def test_an_invalid_answer_is_retried_if_the_agent_has_retries() -> None:
    @agent(retries=2)
    async def program() -> str:
        return await gen("q", choices=["yes", "no"])

    routes = {**MODELS, f"POST {CHAT}": saying("Sure!", "well", "no")}
    async with Server(routes) as server, Session(server.url, seed=1):
        assert await program() == "no"
    seeds = [request.body["seed"] for request in server.asked(CHAT)]
    assert len(set(seeds)) == 3


async def test_an_answer_that_was_cut_short_may_be_the_beginning_of_a_choice() -> None:
    def cut(request: Received) -> Answer:
        return 200, {"choices": [{"message": {"content": "ye"}, "finish_reason": "length"}]}

    async with Server({**MODELS, f"POST {CHAT}": cut}) as server:
        client = HttpClient(server.url)
        assert (await client.complete(ask("q", choices=("yes", "no")))).text == "ye"
        with pytest.raises(InvalidAnswer):
            await client.complete(ask("q", choices=("a", "b")))
        await client.aclose()


async def test_a_model_that_wants_another_word_for_max_tokens() -> None:
    def picky(request: Received) -> Answer:
        if "max_tokens" in request.body:
            return 400, {"error": {"message": "Unsupported parameter: use 'max_completion_tokens' instead."}}
        return chat(request)

    async with Server({**MODELS, f"POST {CHAT}": picky}) as server:
        client = HttpClient(server.url)
        for prompt in "qr":
            assert (await client.complete(ask(prompt, max_tokens=9))).text == "hello"
        await client.aclose()
    assert [request.body.get("max_completion_tokens") for request in server.asked(CHAT)] == [None, 9, 9]


async def test_extra_fields_and_headers() -> None:
    async with Server({**MODELS, f"POST {CHAT}": chat}) as server:
        client = HttpClient(
            server.url,
            extra_body={"reasoning_effort": "low", "max_tokens": 3},
            extra_headers={"x-title": "hive"},
        )
        await client.complete(ask("q"))
        await client.aclose()
    (request,) = server.asked(CHAT)
    assert (request.body["reasoning_effort"], request.body["max_tokens"]) == ("low", 3)
    assert all(each.headers["x-title"] == "hive" for each in server.received)
