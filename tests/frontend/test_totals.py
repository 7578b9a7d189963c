"""What calls cost: prompt tokens, cached tokens and money, in replies, totals and journals."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hive_frontend import (
    CachedMessage,
    Completion,
    HttpClient,
    Prices,
    Session,
    TextMessages,
    agent,
    decode,
    gather,
    gen,
    prefill,
    run,
)
from hive_frontend.client import sample_seed
from hive_frontend.testing import ScriptedModel, forbid_real_calls

from tests.frontend.choreography_server import Keeper
from tests.frontend.http_server import Answer, Events, Received, Server
from tests.frontend.test_http_client import MODELS, ask

CHAT = "POST /v1/chat/completions"
USAGE = {"prompt_tokens": 100, "completion_tokens": 11, "prompt_tokens_details": {"cached_tokens": 60}}
PRICES = Prices(prompt=3, cached=0.5, output=15)


def choices(usage: Any) -> Any:
    def answer(request: Received) -> Answer:
        numbers = range(request.body.get("n", 1))
        if not request.body.get("stream"):
            many = [{"message": {"content": f"{number}"}, "finish_reason": "stop"} for number in numbers]
            return 200, {"choices": many, "usage": usage}
        events = [
            {"choices": [{"index": number, "delta": {"content": f"{number}"}, "finish_reason": "stop"}]}
            for number in numbers
        ]
        return 200, Events([*events, {"choices": [], "usage": usage}, b"data: [DONE]\n\n"])

    return answer


def read(done: Completion) -> tuple[int, int, int]:
    return done.prompt_tokens, done.cached_tokens, done.tokens_generated


@pytest.mark.parametrize("streamed", [False, True])
async def test_the_prompt_of_several_choices_is_read_once(streamed: bool) -> None:
    async with Server({**MODELS, CHAT: choices(USAGE)}) as server:
        client = HttpClient(server.url, prices=PRICES)
        heard: list[str] = []
        listen = heard.append if streamed else None
        answers = await asyncio.gather(
            *(client.complete(ask("q", sample=number), listen) for number in range(2))
        )
        await client.aclose()
    assert len(server.asked("/v1/chat/completions")) == 1
    assert heard == (["0", "1"] if streamed else [])
    assert [read(answer) for answer in answers] == [(100, 60, 6), (0, 0, 5)]
    assert [answer.cost for answer in answers] == pytest.approx(
        [(40 * 3 + 60 * 0.5 + 6 * 15) / 1e6, 5 * 15 / 1e6]
    )


async def test_whoever_leaves_does_not_take_the_bill_along() -> None:
    asked, leave = asyncio.Event(), asyncio.Event()

    async def late(request: Received) -> Answer:
        asked.set()
        await leave.wait()
        return choices(USAGE)(request)

    async with Server({**MODELS, CHAT: late}) as server:
        client = HttpClient(server.url)
        first, second = (asyncio.ensure_future(client.complete(ask("q", sample=number))) for number in (0, 1))
        await asked.wait()
        first.cancel()
        await asyncio.wait({first})
        leave.set()
        assert read(await second) == (100, 60, 5)
        await client.aclose()


@pytest.mark.parametrize(
    ("usage", "prompt", "cached"),
    [
        (None, 0, 0),
        ({}, 0, 0),
        ({"prompt_tokens": None, "completion_tokens": None}, 0, 0),
        ({"prompt_tokens": 9}, 9, 0),
        ({"prompt_tokens": 9, "prompt_tokens_details": None}, 9, 0),
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": None}}, 9, 0),
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 12}}, 9, 9),
    ],
)
async def test_servers_need_not_tell(usage: Any, prompt: int, cached: int) -> None:
    async with Server({**MODELS, CHAT: choices(usage)}) as server:
        client = HttpClient(server.url)
        done = await client.complete(ask("q"))
        await client.aclose()
    assert (done.prompt_tokens, done.cached_tokens, done.cost) == (prompt, cached, None)


async def test_each_text_of_a_list_has_its_own_bill() -> None:
    def generate(request: Received) -> Answer:
        events = []
        for index, settings in enumerate(request.body["sampling_params"]):
            assert settings["sampling_seed"] == sample_seed(7, index)
            meta = {"prompt_tokens": 50, "cached_tokens": 49 * index, "completion_tokens": 2}
            meta["finish_reason"] = {"type": "stop"}  # type: ignore[assignment]
            events.append({"index": index, "text": "x", "output_ids": [1, 2], "meta_info": meta})
        return 200, Events(events)

    async with Server({**MODELS, "POST /generate": generate}) as server:
        client = HttpClient(server.url)
        answers = await asyncio.gather(
            *(client.complete(ask(prompt="q", sample=number)) for number in range(2))
        )
        await client.aclose()
    assert [read(answer) for answer in answers] == [(50, 0, 2), (50, 49, 2)]


@agent
async def clerk(question: str) -> str:
    return await gen(f"again {question}")


@agent
async def program(question: str) -> list[str]:
    first = await gen(question)
    return [first, *await gather(gen("a"), clerk(first))]


async def test_totals_have_what_all_agents_read_and_paid() -> None:
    async with Server({**MODELS, CHAT: choices(USAGE)}) as server:
        client = HttpClient(server.url, prices=Prices(prompt=1, output=2))
        async with Session(client) as session:
            await program("q")
            reply = await gen("q")
        await client.aclose()
    totals = session.totals
    assert (totals.requests, totals.prompt_tokens, totals.cached_tokens) == (4, 400, 240)
    assert reply.cost == pytest.approx(122e-6)
    assert totals.cost == pytest.approx(4 * 122e-6)
    assert {name: usage.prompt_tokens for name, usage in totals.agents.items()} == {
        "program": 200,
        "clerk": 100,
        "main": 100,
    }
    assert totals.agents["clerk"].cost == pytest.approx(122e-6)


def test_no_prices_no_cost() -> None:
    totals = run(program, "q", model=ScriptedModel({"*": "two words"})).totals
    assert (totals.cost, totals.agents["clerk"].cost, totals.prompt_tokens) == (None, None, 0)


def test_what_has_a_price_is_added_up() -> None:
    script = {"clerk": [Completion("x", 1, prompt_tokens=5, cost=0.0)], "*": "two words"}
    totals = run(program, "q", model=ScriptedModel(script)).totals
    assert (totals.cost, totals.agents["program"].cost) == (0.0, None)


def test_a_replayed_run_costs_what_it_cost(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    model = ScriptedModel(lambda request: Completion("x", 3, 1, "stop", (), (), 20, 10, 0.5))
    first = run(program, "q", model=model, checkpoint=file).totals
    with forbid_real_calls():
        again = run(program, "q", replay=file).totals
    assert (again.prompt_tokens, again.cached_tokens, again.cost) == (60, 30, 1.5)
    assert again.agents == first.agents


def test_journals_that_know_nothing_of_prompts_are_read(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    run(program, "q", model=ScriptedModel({"*": Completion("x", 3, 1, "stop", (), (), 20)}), checkpoint=file)
    entries = [json.loads(line) for line in file.read_text().splitlines()]
    for entry in entries:
        if "reply" in entry:
            entry["reply"] = entry["reply"][:4]
    file.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    totals = run(program, "q", replay=file).totals
    assert (totals.tokens_generated, totals.prompt_tokens, totals.cost) == (9, 0, None)


async def test_messages_cost_something_too() -> None:
    text = TextMessages(ScriptedModel([Completion("x", 1, 0, "stop", (), (), 8, 4, 0.25)]))
    async with Session(text) as session:
        message = await decode("A:")
    assert (message.reply.prompt_tokens, session.totals.cached_tokens, session.totals.cost) == (8, 4, 0.25)


async def test_messages_that_a_server_keeps_cost_what_it_read_and_wrote() -> None:
    async with Server(Keeper().routes()) as server:
        client = HttpClient(server.url, prices=PRICES)
        async with Session(client) as session:
            system = await prefill("system.")
            answer = await decode("A:", parents=[system])
        await client.aclose()
    reply = answer.reply
    assert (reply.prompt_tokens, reply.cached_tokens) == (2, 1)
    assert reply.cost == pytest.approx((3 + 0.5 + 15 * reply.tokens_generated) / 1e6)
    assert session.totals.cost == reply.cost
    assert CachedMessage.from_json(json.loads(json.dumps(answer.to_json()))).reply.cost == reply.cost


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"prompt": -1, "output": 1}, "prompt"),
        ({"prompt": True, "output": 1}, "prompt"),
        ({"prompt": 1, "output": float("nan")}, "output"),
        ({"prompt": 1, "output": None}, "output"),
        ({"prompt": 1, "output": 1, "cached": "0.1"}, "cached"),
    ],
)
def test_prices_are_numbers(given: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=f"Prices: {name} must be"):
        Prices(**given)
    with pytest.raises(TypeError, match="prices must be Prices"):
        HttpClient("http://localhost:1", prices=given)  # type: ignore[arg-type]
