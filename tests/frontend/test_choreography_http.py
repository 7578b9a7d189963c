"""Kept messages over HTTP: what is sent, what comes back, and what servers refuse."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import tenacity
from hive_frontend import (
    BestOfN,
    CachedMessage,
    CallTimeout,
    HiveError,
    HttpClient,
    JournalError,
    KvUse,
    ModelError,
    Piece,
    Session,
    agent,
    arun,
    decode,
    gather,
    gen,
    prefill,
    score,
    stream,
)
from hive_frontend.client import sample_seed
from hive_frontend.operations.identity import call_seed

from tests.frontend.choreography_server import Keeper
from tests.frontend.http_server import Answer, Events, Received, Server


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the pauses between attempts."""

    monkeypatch.setattr("tenacity.wait_random_exponential", lambda **_: tenacity.wait_none())


async def test_the_two_calls_as_they_are_sent() -> None:
    keeper = Keeper()
    async with Server(keeper.routes()) as server:
        client = HttpClient(server.url, tenant="lab", api_key="secret")
        async with Session(client, seed=3) as session:
            system = await prefill("system.")
            plan = await prefill([80, 81], parents=[system], offsets=[5], new_offset=40, agent="planner")
            answer = await decode(
                "A:",
                parents=[plan, system],
                offsets=[None, 9],
                max_tokens=7,
                temperature=0.5,
                top_p=0.9,
                top_k=3,
                stop="\n",
                choices=("a", "b"),
                corrector={"kind": "first-k", "share": 0.15},
                sample=4,
            )
            await answer.delete()
            await answer.delete()
            assert session.totals.requests == 3
            assert session.totals.tokens_generated == answer.tokens_generated == len(answer.text)
            assert session.totals.tokens_replayed == 1
            assert session.totals.agents["planner"].requests == 1
            assert set(keeper.kept) == {system.id, plan.id}
        await client.aclose()
    assert not keeper.kept, "messages end with their session"
    one, two = server.asked("/hive/prefill")
    (three,) = server.asked("/hive/decode")
    assert one.body == {"text": "system.", "parents": []}
    assert two.body == {"tokens": [80, 81], "parents": [system.id], "offsets": [5], "new_offset": 40}
    seed = sample_seed(call_seed(3, (2,), "0", 0), 4)
    assert three.body == {
        "header": "A:",
        "parents": [plan.id, system.id],
        "offsets": [None, 9],
        "corrector": {"kind": "first-k", "share": 0.15},
        "sampling_params": {
            "max_new_tokens": 7,
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 3,
            "stop": ["\n"],
            "regex": "(a|b)",
            "sampling_seed": seed,
        },
    }
    for request in one, two, three:
        assert request.headers["x-hive-tenant"] == "lab"
        assert request.headers["x-hive-session"] == session.id
        assert request.headers["authorization"] == "Bearer secret"
        assert "x-hive-replay" not in request.headers
    assert [request.headers["x-hive-agent"] for request in (one, two, three)] == ["main", "planner", "main"]
    assert [len(server.asked(f"/hive/messages/{answer.id}")), system.offset, system.end] == [2, 0, 7]
    assert (plan.text, plan.tokens, plan.offset, plan.end, plan.from_tokens) == ("", 2, 40, 42, True)
    assert (answer.header, answer.offset, answer.end) == ("A:", 16, 16 + len(answer.content))
    assert answer.text == f" four {seed % 1000}"
    assert answer.output_ids == tuple(map(ord, answer.text))
    assert answer.finish_reason == answer.reply.finish_reason == "stop"
    assert answer.kv == KvUse(exact=1, placed=9, recomputed=0, missing=2)
    assert answer.session == session.id


async def test_what_is_left_out_is_the_servers() -> None:
    async with Server(Keeper().routes()) as server, Session(HttpClient(server.url, replay="off")):
        made = await decode([65, 66], json_schema={"type": "object"})
    (request,) = server.asked("/hive/decode")
    assert request.headers["x-hive-replay"] == "off"
    assert request.body["header_tokens"] == [65, 66]
    assert request.body.keys() == {"header_tokens", "parents", "sampling_params"}
    settings = request.body["sampling_params"]
    assert settings.keys() == {"max_new_tokens", "sampling_seed", "json_schema"}
    assert json.loads(settings["json_schema"]) == {"type": "object"}
    assert made.from_tokens
    assert made.header == ""


async def test_a_refusal_has_the_servers_message() -> None:
    async with Server(Keeper().routes()) as server, Session(HttpClient(server.url)):
        system = await prefill("system")
        await system.delete()
        for call in prefill("x", parents=[system]), decode("x", parents=[system]):
            with pytest.raises(ModelError, match=r"answered 400: parents: unknown id 'kept-1'") as caught:
                await call
            assert caught.value.status == 400


async def test_another_tenant_does_not_see_a_message() -> None:
    keeper = Keeper()
    async with Server(keeper.routes()) as server, Session(HttpClient(server.url, tenant="one")):
        secret = await prefill("secret")
        async with Session(HttpClient(server.url, tenant="two")):
            with pytest.raises(ModelError, match="unknown id"):
                await decode("x", parents=[secret])
            await secret.delete()
        assert secret.id in keeper.kept


async def test_a_message_of_another_live_session_is_a_parent_like_any_other() -> None:
    async with Server(Keeper().routes()) as server:

        @agent
        async def program(doc: CachedMessage) -> int:
            return (await decode("A:", parents=[doc])).offset

        async with Session(HttpClient(server.url)):
            doc = await prefill("doc")
            assert (await arun(program, doc, model=server.url)).value == 3


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_server_that_keeps_none_is_named_with_the_flag(streamed: bool) -> None:
    async with Server({"POST /hive/agents": lambda request: (200, {})}) as server:
        listen = {"on_piece": lambda piece: None} if streamed else {}
        async with Session(HttpClient(server.url), **listen):  # type: ignore[arg-type]
            for call in prefill("x"), decode("x"):
                with pytest.raises(ModelError, match=r"does not keep messages; start .* --hive-kv-segments"):
                    await call


async def test_clients_that_cannot() -> None:
    behind = HttpClient("http://127.0.0.1:9", servers=["http://127.0.0.1:8"])
    async with Server(Keeper().routes()) as server:
        distinct = HttpClient(server.url, replay="distinct")
        async with Session(distinct) as session:
            with pytest.raises(ModelError, match='does not support replay="distinct"'):
                await decode("x")
            session_id = session.id
    from hive_frontend.client import MessageCall, Request, Sampling

    call = MessageCall(Request((), Sampling(), 0, "a", session_id, "0", 0, prompt="x"))
    with pytest.raises(HiveError, match="a message is kept by one server"):
        await behind.prefill(call)


async def test_an_answer_without_a_message_is_an_error() -> None:
    routes = {
        **Keeper().routes(),
        "POST /hive/prefill": lambda request: (200, {"id": "m"}),
        "POST /hive/decode": lambda request: (200, {"id": "m", "tokens": 2, "offset": 0}),
    }
    async with Server(routes) as server, Session(HttpClient(server.url)):
        with pytest.raises(ModelError, match="is not a message, because 'tokens' is missing"):
            await prefill("x")
        with pytest.raises(ModelError, match="is not a message, because 'text' is missing"):
            await decode("x")


async def test_calls_are_tried_again_and_bounded_in_time() -> None:
    keeper, failures = Keeper(), [503, 502]

    def flaky(request: Received) -> Answer:
        return (failures.pop(), {}) if failures else keeper.prefill(request)

    async def never(request: Received) -> Answer:
        await asyncio.sleep(60)
        raise AssertionError

    routes = {**keeper.routes(), "POST /hive/prefill": flaky, "POST /hive/decode": never}
    async with Server(routes) as server, Session(HttpClient(server.url, timeout_s=0.5)):
        assert (await prefill("x")).tokens == 1
        with pytest.raises(CallTimeout, match=r"no answer within 0.5 s"):
            await decode("x")
        await asyncio.wait_for(server.hung_up.wait(), 5)


async def test_parts_of_a_gather_are_under_way_at_once() -> None:
    keeper, together = Keeper(), asyncio.Barrier(3)

    async def wait(request: Received) -> Answer:
        await asyncio.wait_for(together.wait(), 5)
        return keeper.decode(request)

    routes = {**keeper.routes(), "POST /hive/decode": wait}
    async with Server(routes) as server, Session(HttpClient(server.url)):
        system = await prefill("system")
        made = await gather(*[decode(f"{name}:", parents=[system]) for name in "abc"])
    assert [message.header for message in made] == ["a:", "b:", "c:"]
    assert len({message.text for message in made}) == 3, "each part has a seed of its own"
    assert len({message.id for message in made}) == 3


async def test_pieces_make_up_the_answer() -> None:
    pieces: list[Piece] = []
    async with Server(Keeper().routes()) as server, Session(HttpClient(server.url), on_piece=pieces.append):
        made = await decode("A:", name="answer", stop="ur 9")
        await prefill("x")
    (request,) = server.asked("/hive/decode")
    assert request.body["stream"] is True
    assert "stream" not in server.asked("/hive/prefill")[0].body
    assert "".join(piece.text for piece in pieces) == made.text
    assert len(pieces) > 2
    assert {piece.name for piece in pieces} == {"answer"}
    assert made.tokens == len(made.content)


async def test_a_stream_that_is_cut_off_is_an_error() -> None:
    cut = Events([{"text": " fo", "meta_info": {}}])
    routes = {**Keeper().routes(), "POST /hive/decode": lambda request: (200, cut)}
    async with Server(routes) as server, Session(HttpClient(server.url), on_piece=lambda piece: None):
        with pytest.raises(ModelError, match="the stream ended before the answer was complete"):
            await decode("A:")


async def test_an_adapter_is_the_messages_too() -> None:
    cards = [{"id": "base", "owned_by": "sglang"}, {"id": "judge", "parent": "base", "owned_by": "sglang"}]
    routes = {**Keeper().routes(), "GET /v1/models": lambda request: (200, {"data": cards})}
    async with Server(routes) as server:

        @agent(model="judge")
        async def program() -> str:
            return str((await decode("A:", parents=[await prefill("x")])).text)

        await arun(program, model=server.url)
    assert [
        request.body["lora_path"] for request in server.received if "parents" in (request.body or {})
    ] == [
        "judge",
        "judge",
    ]


@agent(supervisor=BestOfN(3, at="answer"))
async def debate(question: str) -> tuple[str, str]:
    system = await prefill(f"Solve {question}.", name="system")
    answer = await decode("A:", parents=[system], name="answer")
    verdict = await decode("Judge:", parents=[answer, system], new_offset=200, name="judge")
    score(-int(verdict.text.split()[-1]))
    return str(answer.text), str(verdict.text)


async def test_a_search_draws_again_behind_the_messages_made_before() -> None:
    keeper = Keeper()
    async with Server(keeper.routes()) as server:
        first = await arun(debate, "1+1", model=server.url, seed=5)
        again = await arun(debate, "1+1", model=server.url, seed=5, max_concurrency=1)
    assert first.results == again.results, "runs are repeatable"
    assert not keeper.kept
    (_, _) = server.asked("/hive/prefill")
    calls = [request.body for request in server.asked("/hive/decode")][:6]
    answers = [call for call in calls if call["header"] == "A:"]
    assert [call["parents"] for call in answers] == [["kept-1"]] * 3, "one prefill serves all branches"
    assert len({call["sampling_params"]["sampling_seed"] for call in answers}) == 3
    base = call_seed(5, (0, 0), "0")
    assert {call["sampling_params"]["sampling_seed"] for call in answers} == {
        sample_seed(base, sample) for sample in range(3)
    }
    judged = [call["parents"] for call in calls if call["header"] == "Judge:"]
    assert len({parents[0] for parents in judged}) == 3
    assert {parents[1] for parents in judged} == {"kept-1"}
    assert len(first.results) == 3
    assert first.totals.requests == 7


async def test_a_recording_replays_offline_and_an_interrupted_run_names_lost_messages(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    async with Server(Keeper().routes()) as server:
        first = await arun(debate, "1+1", model=server.url, checkpoint=file, max_concurrency=1)
        asked = len(server.received)
        again = await arun(debate, "1+1", replay=file)
        assert again.results == first.results
        assert again.totals.tokens_generated == first.totals.tokens_generated
        assert again.totals.requests == first.totals.requests
        assert len(server.received) == asked
        lines = file.read_text().splitlines(keepends=True)
        # A run can be resumed if it has made no message yet.
        beginning = [line for line in lines if '"message"' not in line]
        file.write_text("".join(beginning))
        assert (await arun(debate, "1+1", model=server.url, checkpoint=file)).results == first.results
        file.write_text("".join(lines[:-2]))
        with pytest.raises(
            JournalError, match=r"<message kept-\d+ .* does not exist any more: .* give another file"
        ):
            await arun(debate, "1+1", model=server.url, checkpoint=file)
        with pytest.raises(JournalError, match="has no answer for state"):
            await arun(debate, "1+1", replay=file)


async def test_streams_of_searches_carry_decoded_text() -> None:
    async with Server(Keeper().routes()) as server:
        texts: dict[tuple[str, int], str] = {}
        async with stream(debate, "1+1", model=server.url, seed=1) as live:
            async for piece in live:
                key = piece.state, piece.firing
                texts[key] = texts.get(key, "") + piece.text
        found = {text for result in live.result.results for text in result.value}
    assert set(texts.values()) == found


async def test_ordinary_calls_are_as_they_were() -> None:
    def generate(request: Received) -> Answer:
        meta: dict[str, Any] = {"completion_tokens": 1, "finish_reason": {"type": "stop"}}
        return 200, {"text": "hi", "output_ids": [1], "meta_info": meta}

    async with (
        Server({**Keeper().routes(), "POST /generate": generate}) as server,
        Session(HttpClient(server.url)),
    ):
        doc = await prefill("doc")
        said, made = await gather(gen("q", raw=True), decode("A:", parents=[doc]))
    assert said == "hi"
    assert made.content.startswith("A:")
