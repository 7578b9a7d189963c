"""What the arms ask of a server, and what they note."""

from __future__ import annotations

import time

import pytest

from bench.harness.client import BenchError, Client
from bench.kv_segments.accounting import KV, kv_of
from bench.kv_segments.arms import Choreographed, Concatenated, Warm
from bench.kv_segments.encoding import FIRST_ID, RandomTokens, RealText
from examples.choreography.workflows import iterative_debate, parallel_debate, tree_of_thoughts
from hive.server.embedded_model import ensure_embedded_model
from tests.bench.kv_segments_server import StandIn
from tests.frontend.http_server import Events

LENGTHS = RandomTokens(1000, system_tokens=20, problem_tokens=15)


async def test_a_choreographed_workflow() -> None:
    stand_in = StandIn()
    async with stand_in.server as server, Client(server.url) as client:
        io = Choreographed(client, LENGTHS, corrector={"kind": "first-k", "share": 0.15})
        await io.begin()
        await tree_of_thoughts(io, "How many?", branches=3, votes=2, max_tokens=5, seed=7)
        await io.end()
        prefills, decodes = server.asked("/hive/prefill"), server.asked("/hive/decode")
        sessions = {request.headers["x-hive-session"] for request in (*prefills, *decodes)}
    # Three system prompts, the problem, and two questions as long as their texts.
    assert sorted(len(request.body["tokens"]) for request in prefills) == [11, 15, 18, 20, 20, 20]
    # What is asked for at once is one request.
    asked = [request.body for request in decodes]
    assert [len(body.get("calls", [body])) for body in asked] == [3, 2, 1]
    assert all(body["stream"] is True for body in asked)
    final = asked[-1]
    assert final["corrector"] == {"kind": "first-k", "share": 0.15}
    assert final["sampling_params"]["ignore_eos"] is True
    assert final["sampling_params"]["max_new_tokens"] == 5
    # Who votes sees his own system prompt, the problem and all drafts; the last call sees one of them.
    prefilled, drafts = list(stand_in.messages)[:6], list(stand_in.messages)[6:9]
    assert asked[1]["calls"][0]["parents"][2:5] == drafts
    assert {*asked[1]["calls"][0]["parents"][:2], asked[1]["calls"][0]["parents"][5]} <= {*prefilled}
    assert len(final["parents"]) == 4
    assert stand_in.ended == list(sessions)
    assert [call.decode for call in io.calls] == [False] * 6 + [True] * 6
    assert {call.name for call in io.calls if call.decode} == {
        *(f"draft {number}" for number in (1, 2, 3)),
        *(f"vote {number}" for number in (1, 2)),
        "final",
    }
    assert all(call.started_s < call.first_s <= call.ended_s for call in io.calls)
    assert all(call.generated == 5 and call.kv.placed == call.kv.context > 0 for call in io.calls[6:])


async def test_prompts_are_put_together_from_all_tokens_of_messages() -> None:
    stand_in = StandIn()
    async with stand_in.server as server, Client(server.url) as client:
        io = Concatenated(client, LENGTHS)
        await io.begin()
        one = await io.prefill("You are one.", name="system of one")
        two = await io.prefill("You are two.", name="system of two")
        said = await io.decode("One says:", [one], max_tokens=4, temperature=0.7, seed=1, name="one")
        await io.decode("One goes on:", [one, said], max_tokens=4, temperature=0.7, seed=2, name="on")
        await io.decode("Two says:", [two, said], max_tokens=4, temperature=0.7, seed=3, name="two")
        prompts = [request.body["input_ids"] for request in server.asked("/generate")]
        keys = [request.body.get("extra_key") for request in server.asked("/generate")]
    header = LENGTHS("One says:", "one")
    assert prompts[0] == [*one.tokens, *header]
    assert list(said.tokens[: len(header)]) == header
    assert len(said.tokens) == len(header) + 4
    assert prompts[2] == [*two.tokens, *said.tokens, *LENGTHS("Two says:", "two")]
    assert keys == [None] * 3
    contexts = [call.kv for call in io.calls]
    # Behind its own history a message is found, behind another's it is not.
    assert contexts[0] == KV(missing=20)
    assert contexts[1] == KV(exact=20 + len(said.tokens))
    assert contexts[2] == KV(missing=20 + len(said.tokens))


async def test_without_a_cache_no_prompt_finds_another() -> None:
    stand_in = StandIn()
    async with stand_in.server as server, Client(server.url) as client:
        io = Concatenated(client, LENGTHS, cached=False)
        await io.begin()
        await iterative_debate(io, "How many?", rounds=2, stop_early=False, max_tokens=5)
        keys = {request.body["extra_key"] for request in server.asked("/generate")}
    assert len(keys) == len(io.calls) == 6
    assert all(call.kv.exact == 0 and call.kv.missing > 0 for call in io.calls)


async def test_the_bound_has_every_prompt_cached_before_it_counts() -> None:
    stand_in = StandIn()
    async with stand_in.server as server, Client(server.url) as client:
        io = Warm(client, LENGTHS)
        await io.begin()
        began = time.perf_counter()
        await parallel_debate(io, "How many?", rounds=2, max_tokens=6)
        took = time.perf_counter() - began
        bodies = [request.body for request in server.asked("/generate")]
    # Three agents at a time: all of their prompts are there before the first call that counts.
    rounds = [bodies[at : at + 6] for at in (0, 6)]
    for asked in rounds:
        assert [body["sampling_params"]["max_new_tokens"] for body in asked] == [1] * 3 + [6] * 3
        assert [body["input_ids"] for body in asked[:3]] == [body["input_ids"] for body in asked[3:]]
    assert len(io.calls) == 6
    assert all(call.kv.missing == 0 and call.kv.exact > 0 for call in io.calls)
    assert 0.0 < io.beside_s < took


async def test_arms_decode_equally_much_from_contexts_of_one_length() -> None:
    stand_in = StandIn()
    totals = set()
    async with stand_in.server as server, Client(server.url) as client:
        for io in (
            Choreographed(client, LENGTHS),
            Concatenated(client, LENGTHS),
            Concatenated(client, LENGTHS, cached=False),
            Warm(client, LENGTHS),
        ):
            await io.begin()
            await parallel_debate(io, "How many?", max_tokens=6)
            await io.end()
            decodes = [call for call in io.calls if call.decode]
            totals.add(
                (
                    len(decodes),
                    sum(call.generated for call in decodes),
                    sum(call.kv.context for call in decodes),
                )
            )
    assert len(totals) == 1


async def test_offsets_are_handed_on() -> None:
    stand_in = StandIn()
    async with stand_in.server as server, Client(server.url) as client:
        io = Choreographed(client, LENGTHS)
        first = await io.prefill("a", name="problem")
        await io.prefill("b", [first], offsets=[40], new_offset=3, name="problem")
        bodies = [request.body for request in server.asked("/hive/prefill")]
    assert "offsets" not in bodies[0]
    assert "new_offset" not in bodies[0]
    assert (bodies[1]["parents"], bodies[1]["offsets"], bodies[1]["new_offset"]) == ([first.id], [40], 3)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ((400, {"error": {"message": "start it with --hive-kv-segments"}}), "--hive-kv-segments"),
        ((200, Events([{"error": {"message": "out of memory"}}])), "the stream broke off: .*out of memory"),
        ((200, Events([{"output_ids": [1], "meta_info": {"finish_reason": None}}])), "ended before"),
        ((200, Events([])), "ended before"),
        (
            (
                200,
                Events([{"id": "m", "output_ids": [1], "meta_info": {"finish_reason": {"type": "length"}}}]),
            ),
            "no account of its KV segments: None",
        ),
    ],
)
async def test_a_server_that_does_not_do_as_it_must(answer: object, sentence: str) -> None:
    stand_in = StandIn()
    stand_in.server.routes["POST /hive/decode"] = lambda request: answer  # type: ignore[assignment,return-value]
    async with stand_in.server as server, Client(server.url) as client:
        io = Choreographed(client, LENGTHS)
        with pytest.raises(BenchError, match=sentence):
            await io.decode("A:", [], max_tokens=1, temperature=0.0, seed=0, name="a")
    assert io.calls == []


def test_an_account_with_a_gap_is_none() -> None:
    whole = {"exact": 1, "placed": 2, "recomputed": 3, "missing": 4}
    assert kv_of(whole) == KV(1, 2, 3, 4)
    assert kv_of(whole).context == 10
    assert kv_of(whole) + KV(placed=1) == KV(1, 3, 3, 4)
    for wrong in (None, {}, {**whole, "placed": None}, [1, 2, 3, 4]):
        with pytest.raises(BenchError):
            kv_of(wrong)


def test_random_tokens_stand_for_texts() -> None:
    assert LENGTHS("a text", "system of one") == LENGTHS("a text", "system of two")
    assert LENGTHS("a text", "problem") != LENGTHS("another text", "problem")
    assert len(LENGTHS("x" * 41, "draft 1")) == 10
    assert len(LENGTHS("", "draft 1")) == 1
    tokens = RandomTokens(FIRST_ID + 1, 50, 50)("a text", "problem")
    assert tokens == [FIRST_ID] * 50


def test_real_texts_are_cut_by_the_models_tokenizer() -> None:
    encode = RealText(ensure_embedded_model())
    assert encode("<|im_start|>user\nhello<|im_end|>\n") == [1, 4093, 198, 28120, 2, 198]
