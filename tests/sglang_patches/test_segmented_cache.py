"""The radix cache with a segment store beside it, on SGLang's own pool: who sees which KV, and that none is lost."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Any

import pytest

pytest.importorskip("sglang", reason="needs the server extra: uv pip install 'hive[server]'")
pytest.importorskip(
    "sglang.srt.mem_cache.hiradix_cache", reason="of SGLang 0.5.17; later ones have the unified tree"
)

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from sglang.srt.managers.schedule_batch import FINISH_ABORT

from hive.server.kv_segments.request import Keep, KvRequest, WireSpan
from tests.sglang_patches.segmented_pool import SegmentedPool, SegmentedRequest

POLICIES = ("density", "paper", "lru")
CORRECTORS: tuple[Any, ...] = (
    "none",
    "recompute-all",
    {"kind": "first-k", "share": 0.3},
    {"kind": "first-k", "tokens": 2},
    {"kind": "blend", "share": 0.3},
    {"kind": "blend", "share": 0.3, "block": 3},
)


def text(name: int, length: int) -> list[int]:
    """Tokens that no other name has."""
    return [1000 * (name + 1) + at for at in range(length)]


def declared(
    *parts: Sequence[int] | tuple[str, Sequence[int]], corrector: Any = "none", keep_output: bool = False
) -> tuple[list[int], KvRequest]:
    """A prompt of parts, and what is asked for; parts with the name of a context are declared."""
    tokens: list[int] = []
    spans, keeps = [], []
    for part in parts:
        if isinstance(part, tuple):
            name, part = part
            end = len(tokens) + len(part)
            spans.append(WireSpan(len(tokens), end, len(tokens), name))
            if name == "producer":
                keeps.append(Keep(len(tokens), end, name))
        tokens += part
    if keep_output:
        keeps.append(Keep(len(tokens), None, "producer"))
    return tokens, KvRequest(tuple(spans), tuple(keeps), corrector=corrector)


def call(
    id: str,
    own: Sequence[int],
    *parents: tuple[str, Sequence[int], int],
    at: int | None = None,
    decodes: bool = False,
    corrector: Any = "none",
) -> tuple[list[int], KvRequest]:
    """A call of a choreography: its parents by id, tokens and offset, and where its own message begins."""
    tokens: list[int] = []
    spans = []
    behind = 0
    for parent, words, offset in parents:
        spans.append(WireSpan(len(tokens), len(tokens) + len(words), offset, f"message:{parent}"))
        tokens += words
        behind = offset + len(words)
    context = len(tokens)
    keep = Keep(context, None if decodes else context + len(own), f"message:{id}")
    shift = (behind if at is None else at) - context
    return [*tokens, *own], KvRequest(tuple(spans), (keep,), shift, choreographed=True, corrector=corrector)


def said(req: SegmentedRequest) -> dict[str, int]:
    assert req.customized_info is not None
    answer: dict[str, int] = req.customized_info["hive_kv"][0]
    return answer


def kv(exact: int = 0, placed: int = 0, recomputed: int = 0, missing: int = 0) -> dict[str, int]:
    return {"exact": exact, "placed": placed, "recomputed": recomputed, "missing": missing}


SHARED = text(1, 10)


def with_segment(**options: Any) -> SegmentedPool:
    """A pool in which one request has left a segment."""
    pool = SegmentedPool(**{"size": 256, "capacity": 128, **options})
    pool.serve(*declared(text(0, 6), ("producer", SHARED), text(2, 3)), agent="writer")
    return pool


# Spans of ordinary requests.


@pytest.mark.parametrize("policy", POLICIES)
def test_a_span_that_was_stored_is_placed_behind_another_context(policy: str) -> None:
    pool = with_segment(policy=policy)
    req = pool.arrive(*declared(text(3, 9), ("producer", SHARED), text(4, 4)), agent="reader")
    assert pool.enter(req)
    pool.step()
    pool.check()
    assert said(req) == kv(placed=10)
    assert pool.seen(req)[:9] == pool.exact(req)[:9]
    assert pool.seen(req)[9:19] != pool.exact(req)[9:19]
    pool.finish(req)
    pool.check()
    assert pool.resident(req.tokens) == 9, "what depends on placed KV is in the tree"
    assert pool.agents.window.edges()[0] == {
        "agent": "reader",
        "producer": "writer",
        "tokens": 10,
        "events": 1,
    }


@pytest.mark.parametrize("corrector", CORRECTORS, ids=str)
def test_tokens_selected_by_a_corrector_are_computed_in_the_requests_context(corrector: Any) -> None:
    pool = with_segment()
    req = pool.arrive(*declared(text(3, 9), ("producer", SHARED), text(4, 4), corrector=corrector))
    assert pool.enter(req)
    pool.step()
    pool.check()
    again = {"none": 0, "recompute-all": 10}.get(corrector if isinstance(corrector, str) else "", 3)
    if corrector == {"kind": "first-k", "tokens": 2}:
        again = 2
    assert said(req) == kv(placed=10 - again, recomputed=again)
    assert (pool.seen(req) == pool.exact(req)) is (corrector == "recompute-all")
    pool.finish(req)
    pool.check()


def test_the_same_prompt_again_is_served_by_the_exact_tree() -> None:
    pool = with_segment()
    req = pool.serve(*declared(text(0, 6), ("producer", SHARED), text(2, 3)))
    assert said(req) == kv(exact=18)
    assert req.state is not None
    assert not req.state.tainted


def test_the_rest_of_a_span_that_the_tree_has_in_part_is_placed() -> None:
    pool = with_segment()
    pool.serve([*text(3, 9), *SHARED[:4], 5])
    req = pool.serve(
        *declared(text(3, 9), ("producer", SHARED), text(4, 4), corrector={"kind": "first-k", "tokens": 6})
    )
    assert said(req) == kv(exact=13, placed=4, recomputed=2)


def test_requests_that_want_a_segment_at_one_position_share_its_slots() -> None:
    pool = with_segment()
    reqs = [pool.arrive(*declared(text(name, 9), ("producer", SHARED), text(4, 4))) for name in (3, 5)]
    for req in reqs:
        assert pool.enter(req)
    pool.step()
    pool.check()
    rows = [pool.table.req_to_token[req.req_pool_idx, 9:19].tolist() for req in reqs]
    assert rows[0] == rows[1]
    pool.finish(reqs[0])
    pool.check()
    pool.finish(reqs[1])
    pool.check()


def test_a_kept_output_is_found_by_its_tokens() -> None:
    pool = SegmentedPool(256, capacity=128)
    first = pool.serve(*declared(text(0, 6), keep_output=True), new=6)
    output = list(first.output_ids[:-1])
    req = pool.serve(*declared(text(3, 4), ("producer", output), text(4, 4)))
    assert said(req) == kv(placed=5)


def test_a_standalone_encoding_is_found_only_as_standalone() -> None:
    pool = SegmentedPool(256, capacity=128)
    pool.serve(list(SHARED), KvRequest(keeps=(Keep(0, 10, "standalone"),), choreographed=True))
    assert said(pool.serve(*declared(text(3, 4), ("producer", SHARED), [1]))) == kv(missing=10)
    assert said(pool.serve(*declared(text(4, 4), ("standalone", SHARED), [1]))) == kv(placed=10)


@pytest.mark.parametrize("who", [{"tenant": "other"}, {"adapter": "other"}], ids=str)
def test_nothing_is_found_by_another_tenant_or_under_another_adapter(who: dict[str, str]) -> None:
    pool = with_segment()
    prompt, asked = declared(text(3, 9), ("producer", SHARED), text(4, 4))
    assert said(pool.serve(prompt, asked, **who)) == kv(missing=10)
    prompt, asked = declared(text(5, 9), ("producer", SHARED), text(4, 4))
    assert said(pool.serve(prompt, asked, **who)) == kv(placed=10), "they have found their own"


def _apart(prompt: list[int], asked: KvRequest, extra_key: str) -> tuple[list[int], KvRequest]:
    return prompt, replace(asked, extra_key=extra_key)


@pytest.mark.parametrize("context", ["producer", "standalone"])
def test_nothing_is_found_under_another_extra_key(context: str) -> None:
    pool = SegmentedPool(256, capacity=128)
    for number, key in enumerate(("", "one", "two")):
        first = pool.serve(*_apart(*declared(text(10 + number, 9), (context, SHARED), [1]), key))
        assert said(first)["missing"] == 10
        if context == "standalone":
            alone = KvRequest(keeps=(Keep(0, 10, context),), choreographed=True)
            pool.serve(*_apart(list(SHARED), alone, key))
        again = pool.serve(*_apart(*declared(text(20 + number, 9), (context, SHARED), [1]), key))
        assert said(again) == kv(placed=10)
    assert len(pool.cache.store) == 3


def test_messages_are_found_whatever_the_extra_key() -> None:
    pool = SegmentedPool(256, capacity=128)
    pool.serve(*_apart(*call("m", text(0, 6)), "one"))
    assert said(pool.serve(*call("n", text(1, 6), ("m", text(0, 6), 4)))) == kv(placed=6)


@pytest.mark.parametrize("corrector", CORRECTORS, ids=str)
def test_a_chunked_prefill_continues_after_placed_kv(corrector: Any) -> None:
    pool = with_segment()
    req = pool.arrive(*declared(text(3, 9), ("producer", SHARED), text(4, 12), corrector=corrector))
    assert pool.enter(req, chunk=5)
    pool.step()
    pool.check()
    while not req.prefilled:
        assert pool.go_on(req, 4)
        pool.step()
        pool.check()
    pool.draw([req])
    pool.check()
    pool.finish(req)
    pool.check()


def test_a_request_that_is_cut_off_in_a_chunk_leaves_nothing() -> None:
    pool = with_segment()
    before = pool.allocator.available_size()
    req = pool.arrive(*declared(text(3, 9), ("producer", SHARED), text(4, 12)))
    assert pool.enter(req, chunk=5)
    pool.step()
    pool.finish(req, insert=False)
    pool.check()
    pool.evict(0)
    assert pool.resident(req.tokens) == 0
    assert pool.allocator.available_size() == before - 10, "the copy stays, the rest is free"


@pytest.mark.parametrize("corrector", CORRECTORS, ids=str)
def test_a_retracted_request_resumes_unchanged(corrector: Any) -> None:
    pool = with_segment()
    req = pool.arrive(*declared(text(3, 9), ("producer", SHARED), text(4, 4), corrector=corrector))
    for _ in range(2):
        assert pool.enter(req)
        pool.step()
        pool.draw([req])
        pool.check()
        pool.retract(req)
        pool.check()
    assert pool.enter(req)
    pool.step()
    pool.finish(req)
    pool.check()


def test_an_aborted_request_leaves_no_segments() -> None:
    pool = SegmentedPool(256, capacity=128)
    req = pool.arrive(*call("m", text(0, 6)))
    assert pool.enter(req)
    pool.step()
    pool.finish(req, abort=FINISH_ABORT())
    pool.check()
    assert len(pool.cache.store) == 0
    assert pool.allocator.available_size() == 256


# Choreographies.


def test_messages_are_placed_where_a_call_has_them() -> None:
    pool = SegmentedPool(256, capacity=128)
    one, two = text(0, 7), text(1, 5)
    pool.serve(*call("one", one))
    pool.serve(*call("two", two, at=40))
    # Reordered, with a gap, and overlapping.
    req = pool.serve(*call("three", text(2, 4), ("two", two, 3), ("one", one, 6), at=30))
    assert said(req) == kv(placed=12)
    assert pool.made["", "", "message:three"][0].position == 30


def test_a_decoded_message_has_its_header_and_its_output() -> None:
    pool = SegmentedPool(256, capacity=128)
    req = pool.serve(*call("m", text(0, 3), decodes=True), new=5)
    message = list(req.tokens[:-1])
    assert len(message) == 7
    assert said(pool.serve(*call("n", [1], ("m", message, 2)))) == kv(placed=7)


def test_a_message_that_is_not_stored_is_computed_where_the_call_has_it() -> None:
    pool = SegmentedPool(256, capacity=128)
    one, two = text(0, 7), text(1, 5)
    pool.serve(*call("one", one))
    pool.serve(*call("two", two))
    assert pool.kv.drop("", ["one"]) == 1
    pool.check()
    req = pool.serve(*call("three", text(2, 4), ("two", two, 3), ("one", one, 6)))
    assert said(req) == kv(placed=5, missing=7)


def test_recomputed_messages_equal_a_prefill_at_their_positions() -> None:
    pool = SegmentedPool(256, capacity=128)
    one, two = text(0, 7), text(1, 5)
    pool.serve(*call("one", one))
    pool.serve(*call("two", two))
    req = pool.arrive(*call("three", text(2, 4), ("two", two, 3), ("one", one, 6), corrector="recompute-all"))
    assert pool.enter(req)
    pool.step()
    pool.check()
    assert pool.seen(req) == pool.exact(req)
    pool.finish(req)


def test_the_tree_never_has_tokens_of_a_choreography() -> None:
    pool = SegmentedPool(256, capacity=128)
    pool.serve(text(0, 7), None)
    pool.serve(*call("one", text(0, 7)))
    pool.serve(*call("two", text(1, 4), ("one", text(0, 7), 0)))
    assert pool.cache.total_size() == 7
    assert pool.resident([*text(0, 7), *text(1, 4)]) == 7


def test_a_dropped_message_is_read_to_the_end_by_those_who_have_it() -> None:
    pool = SegmentedPool(256, capacity=128)
    one = text(0, 7)
    pool.serve(*call("one", one))
    req = pool.arrive(*call("two", text(1, 5), ("one", one, 0)))
    assert pool.enter(req)
    pool.step()
    assert pool.kv.drop(None, ["one", "unknown"]) == 1
    pool.check()
    pool.draw([req])
    pool.check()
    pool.finish(req)
    pool.check()
    assert {segment.key.name for segment in pool.cache.store} == {"message:two"}


def test_messages_are_dropped_of_one_tenant_alone() -> None:
    pool = SegmentedPool(256, capacity=128)
    pool.serve(*call("one", text(0, 7)), tenant="a")
    assert pool.kv.drop("b", ["one"]) == 0
    assert pool.kv.drop("a", ["one"]) == 1
    pool.check()


def test_new_weights_make_every_encoding_useless() -> None:
    pool = with_segment()
    req = pool.arrive(*declared(text(3, 9), ("producer", SHARED), text(4, 4)))
    assert pool.enter(req)
    pool.step()
    pool.kv.forget()
    pool.check()
    assert len(pool.cache.store) == 0
    pool.finish(req)
    pool.check()


# Requests that wait on after they were admitted.


def test_one_that_was_admitted_and_did_not_run_is_admitted_again() -> None:
    pool = with_segment()
    req = pool.arrive(*declared(text(3, 9), ("producer", SHARED), text(4, 4)))
    for _ in range(3):
        assert not pool.enter(req, runs=False)
        pool.check()
    assert pool.enter(req)
    pool.step()
    pool.check()
    pool.finish(req)
    pool.check()


def test_one_that_was_admitted_and_finds_the_exact_tree_later_takes_nothing_of_the_store() -> None:
    pool = with_segment()
    prompt, asked = declared(text(3, 9), ("producer", SHARED), text(4, 4), corrector="recompute-all")
    req = pool.arrive(prompt, asked)
    assert not pool.enter(req, runs=False)
    other = pool.serve([*prompt, 7])
    assert pool.enter(req)
    pool.step()
    pool.check()
    assert said(req) == kv(exact=22)
    pool.finish(req)
    pool.check()
    assert pool.resident(other.tokens) == 24


def test_an_admitted_request_that_ends_early_frees_its_slots() -> None:
    pool = with_segment()
    req = pool.arrive(*declared(text(3, 9), ("producer", SHARED), text(4, 4)))
    assert not pool.enter(req, runs=False)
    pool.leave(req)
    pool.check()


# Memory.


def test_making_room_for_a_segment_does_not_take_it_away() -> None:
    # 10 of the store's 12 tokens are the segment: there is no room beside it for one that is moved.
    pool = with_segment(size=37, capacity=12)
    req = pool.serve(*declared(text(3, 9), ("producer", SHARED), text(4, 4)))
    assert said(req)["placed"] + said(req)["missing"] == 10


def test_a_request_gets_its_own_copy_if_the_store_is_full() -> None:
    pool = with_segment(capacity=12)
    reqs = [pool.arrive(*declared(text(name, 9), ("producer", SHARED), text(4, 4))) for name in (3, 5)]
    for req in reqs:
        assert pool.enter(req)
    pool.step()
    pool.check()
    rows = [pool.table.req_to_token[req.req_pool_idx, 9:19].tolist() for req in reqs]
    assert not set(rows[0]) & set(rows[1])
    for req in reqs:
        assert said(req) == kv(placed=10)
        pool.finish(req)
    pool.check()


def test_a_call_whose_messages_cannot_be_placed_computes_them() -> None:
    pool = SegmentedPool(34, capacity=20)
    one = text(0, 15)
    pool.serve(*call("one", one))
    # There is no room for what is computed again beside what is placed.
    again = {"kind": "first-k", "tokens": 14}
    req = pool.serve(*call("two", text(1, 12), ("one", one, 0), corrector=again))
    assert req.finished_reason is None
    assert said(req) == kv(missing=15)
    assert "message:two" in {segment.key.name for segment in pool.cache.store}


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("corrector", CORRECTORS, ids=str)
def test_a_call_that_does_not_fit_into_the_pool_is_unavailable(corrector: Any, stored: bool) -> None:
    pool = SegmentedPool(64, capacity=32)
    one = text(0, 15)
    if stored:
        pool.serve(*call("one", one))
    asked = call("two", text(1, 6), ("one", one, 3), corrector=corrector)
    # Admission reckons with all of a request's tokens before it loads what is stored of them, so that there is too
    # little room only where it was wrong.
    pool.cache.promised = 64
    req = pool.arrive(*asked)
    assert pool.enter(req)
    pool.step()
    pool.check()
    assert req.finished_reason.status_code == HTTPStatus.SERVICE_UNAVAILABLE
    assert "too few free slots for the messages of this call" in req.finished_reason.message
    assert said(req) == kv(missing=15)
    assert {segment.key.name for segment in pool.cache.store} == ({"message:one"} if stored else set())
    pool.cache.promised = 0
    again = pool.serve(*asked)
    assert (again.finished_reason, said(again)["missing"]) == (None, 0 if stored else 15)


def test_an_ordinary_request_for_whose_segments_there_is_no_room_is_served() -> None:
    pool = with_segment()
    pool.cache.promised = 256
    req = pool.serve(*declared(text(3, 6), ("producer", SHARED), text(4, 7)))
    assert (req.finished_reason, req.to_finish, said(req)) == (None, None, kv(missing=10))


def test_recomputation_leaves_slots_for_the_rest_of_the_prefill() -> None:
    pool = with_segment(size=29, capacity=12)
    again = {"kind": "first-k", "tokens": 9}
    req = pool.serve(*declared(text(3, 6), ("producer", SHARED), text(4, 7), corrector=again))
    assert said(req) == kv(missing=10)


def test_recomputation_leaves_the_slots_promised_to_others() -> None:
    pool = with_segment(size=40, capacity=12)
    again = {"kind": "first-k", "tokens": 9}
    pool.cache.promised = 15
    req = pool.serve(*declared(text(3, 6), ("producer", SHARED), text(4, 7), corrector=again))
    assert said(req) == kv(missing=10)
    pool.cache.promised = 0
    req = pool.serve(*declared(text(5, 6), ("producer", SHARED), text(4, 7), corrector=again))
    assert said(req) == kv(placed=1, recomputed=9)


def test_kv_is_copied_before_it_enters_the_tree_and_can_be_evicted() -> None:
    pool = with_segment(size=100, capacity=40)
    before = text(5, 8)
    prompt, asked = declared(text(3, 3), ("producer", before), text(6, 2), ("producer", SHARED), text(4, 4))
    req = pool.arrive(prompt, asked)
    assert pool.enter(req)
    pool.step()
    pool.serve([*prompt[:13], 7])
    # All that is left is what the copy is made of.
    taken = pool.allocator.alloc(pool.allocator.available_size())
    pool.finish(req)
    pool.allocator.free(taken)
    pool.check()
    pool.serve([1, 2, 3])


# What others have asked for.


def test_nothing_is_placed_behind_the_first_token_whose_logprob_is_asked_for() -> None:
    pool = with_segment()
    req = pool.arrive(*declared(text(3, 9), ("producer", SHARED), text(4, 4)))
    req.logprobs_from = 12
    assert pool.enter(req)
    assert len(req.prefix_indices) == 12
    pool.step()
    pool.check()
    assert said(req) == kv(placed=3)
    pool.finish(req)
    pool.check()


def test_a_recreated_message_replaces_an_undelivered_one() -> None:
    pool = SegmentedPool(256, capacity=128)
    pool.serve(*call("m", text(0, 9)))
    pool.serve(*call("m", text(1, 5), at=20))
    pool.check()
    assert said(pool.serve(*call("n", [1], ("m", text(1, 5), 2)))) == kv(placed=5)


def test_a_message_of_other_tokens_is_not_taken_for_the_one_of_that_id() -> None:
    pool = SegmentedPool(256, capacity=128)
    pool.serve(*call("m", text(0, 9)))
    assert said(pool.serve(*call("n", [1], ("m", text(1, 5), 2)))) == kv(missing=5)


# All of it, in any order.

SEEDS = st.integers(0, 2**16)
WORDS = [text(name, length) for name, length in enumerate((3, 5, 8, 4))]
PARTS = [text(10 + name, length) for name, length in enumerate((6, 9, 12))]
WHO: tuple[dict[str, str], ...] = ({}, {}, {}, {}, {"tenant": "t"}, {"adapter": "lora"})


class SegmentedMachine(RuleBasedStateMachine):
    """Everything that the scheduler and the HTTP process do to a cache with segments."""

    @initialize(
        policy=st.sampled_from(POLICIES),
        size=st.sampled_from([40, 50, 70, 120]),
        capacity=st.sampled_from([10, 20, 30, 40]),
        host=st.sampled_from([0, 12, 40]),
    )
    def begin(self, policy: str, size: int, capacity: int, host: int) -> None:
        self.pool = SegmentedPool(size, policy, capacity=capacity, host=host)
        self.messages: dict[tuple[str, str], dict[str, list[int]]] = {}
        self.names = 0

    # Requests.

    def arrive(self, chance: random.Random) -> SegmentedRequest:
        """Some request."""
        who = {
            **chance.choice(WHO),
            "agent": chance.choice(["a", "b", "c", None]),
            "session": chance.choice(["s", "t", None]),
        }
        kind = chance.choices(["plain", "declared", "alone", "call"], [2, 5, 1, 4])[0]
        if kind == "plain":
            parts = chance.choices([*WORDS, *PARTS], k=chance.randrange(1, 4))
            tokens = [token for part in parts for token in part]
            return self.pool.arrive([*tokens, chance.randrange(3)], **who)
        if kind == "declared":
            return self.pool.arrive(*self.declaration(chance), **who)
        if kind == "alone":
            part = chance.choice(PARTS)
            asked = KvRequest(keeps=(Keep(0, len(part), "standalone"),), choreographed=True)
            return self.pool.arrive(part, asked, **who)
        known = self.messages.setdefault((who.get("tenant", ""), who.get("adapter", "")), {})
        return self.pool.arrive(*self.call_on(chance, known), **who)

    @staticmethod
    def declaration(chance: random.Random) -> tuple[list[int], KvRequest]:
        parts: list[Any] = [chance.choice(WORDS)] if chance.random() < 0.8 else []
        for part in chance.choices(PARTS, k=chance.randrange(1, 3)):
            parts.append((chance.choice(["producer", "producer", "standalone"]), part))
            if chance.random() < 0.4:
                parts.append(chance.choice(WORDS))
        if chance.random() < 0.8:
            parts.append([chance.randrange(3)])
        return declared(*parts, corrector=chance.choice(CORRECTORS), keep_output=chance.random() < 0.3)

    def call_on(self, chance: random.Random, known: dict[str, list[int]]) -> tuple[list[int], KvRequest]:
        """A call whose parents are some of the messages that are known."""
        ids = chance.sample(sorted(known), min(len(known), chance.randrange(4)))
        parents, at = [], 0
        for id in ids:
            at = chance.choice([at, at, chance.randrange(50)])
            parents.append((id, known[id], at))
            at += len(known[id])
        self.names += 1
        return call(
            # Now and then one that was made for a client that never heard of it.
            f"{self.names if chance.random() < 0.9 else -1}",
            chance.choice(WORDS),
            *parents,
            at=chance.choice([None, chance.randrange(80)]),
            decodes=chance.random() < 0.5,
            corrector=chance.choice(CORRECTORS),
        )

    def running(self, prefilled: bool = True) -> list[SegmentedRequest]:
        return [req for req in self.pool.running if req.prefilled is prefilled]  # type: ignore[attr-defined]

    def finish(self, req: SegmentedRequest) -> None:
        self.pool.finish(req)
        for keep in req.state.request.keeps if req.state is not None else ():
            id = keep.name.removeprefix("message:")
            if id not in (keep.name, "-1"):
                known = self.messages.setdefault((req.tenant, req.adapter), {})
                known[id] = list(req.tokens[keep.start : keep.end or len(req.tokens) - 1])

    # What happens.

    @rule(seed=SEEDS, new=st.integers(1, 4))
    def serve(self, seed: int, new: int) -> None:
        """A request from its arrival to its end."""
        req = self.arrive(random.Random(seed))
        if len(self.pool.running) > 3 or not self.pool.enter(req):
            self.pool.leave(req)
            return
        self.pool.step()
        while len(req.output_ids) < new and req in self.pool.running and self.pool.room():
            self.pool.draw([req])
        if req in self.pool.running:
            self.pool.check()
            self.finish(req)

    @rule(seed=SEEDS, many=st.integers(1, 3))
    def queue(self, seed: int, many: int) -> None:
        for at in range(many):
            if len(self.pool.waiting) < 4:
                self.arrive(random.Random(seed + at))

    @rule(seed=SEEDS, chunk=st.sampled_from([None, None, 3, 9]))
    def run_a_batch(self, seed: int, chunk: int | None) -> None:
        """At most one prefill of a batch is cut, the last one."""
        chance = random.Random(seed)
        cut = self.running(prefilled=False)
        if cut:
            self.pool.go_on(cut[0], chance.randrange(1, 12))
        waiting = chance.sample(self.pool.waiting, len(self.pool.waiting))
        while waiting and len(self.pool.running) + len(self.pool.batch) < 4:
            cuts = not cut and chunk is not None
            self.pool.enter(waiting.pop(), chunk if cuts else None, runs=chance.random() < 0.8)
            if cuts:
                break
        self.pool.check()
        self.pool.step()

    @rule(steps=st.integers(1, 3))
    def draw(self, steps: int) -> None:
        for _ in range(steps):
            self.pool.draw(self.running())

    @rule(seed=SEEDS, how=st.sampled_from(["finish", "finish", "finish late", "abort", "retract", "cut off"]))
    def end(self, seed: int, how: str) -> None:
        fit = self.running(prefilled=how != "cut off")
        if not fit:
            return
        req = fit[seed % len(fit)]
        match how:
            case "abort":
                self.pool.finish(req, abort=FINISH_ABORT())
            case "cut off":
                self.pool.finish(req, insert=False)
            case "retract":
                self.pool.retract(req)
            case _:
                if how == "finish late":
                    self.pool.draw([req], late=True)
                self.finish(req)

    @rule(seed=SEEDS, what=st.sampled_from(["leave", "drop", "match", "session", "weights", "flush"]))
    def disturb(self, seed: int, what: str) -> None:
        chance = random.Random(seed)
        waiting = chance.choice(self.pool.waiting) if self.pool.waiting else None
        match what:
            case "leave" if waiting is not None:
                self.pool.leave(waiting)
            case "match" if waiting is not None:
                self.pool.match(waiting.tokens, waiting)
            case "drop":
                known = [(who, id) for who, messages in self.messages.items() for id in messages]
                for who, id in chance.sample(known, len(known) // 4):
                    self.pool.kv.drop(who[0], [id])
                    del self.messages[who][id]
            case "session":
                self.pool.end_session(chance.choice(["s", "t"]))
            case "weights" if chance.random() < 0.1:
                self.pool.kv.forget()
            case "flush" if chance.random() < 0.1 and not self.pool.running and not self.pool.waiting:
                self.pool.flush()

    @rule(seed=SEEDS)
    def time_passes(self, seed: int) -> None:
        self.pool.time_passes(random.Random(seed))

    @rule(tokens=st.integers(0, 25))
    def evict(self, tokens: int) -> None:
        there = self.pool.cache.evictable_size()
        evicted = self.pool.evict(tokens)
        assert self.pool.cache.evictable_size() == there - evicted
        assert evicted >= min(tokens, there)

    @invariant()
    def nothing_is_lost_or_mixed_up(self) -> None:
        if hasattr(self, "pool"):
            self.pool.check()

    def teardown(self) -> None:
        """When all requests are finished, nothing in the store is in use, and everything can be evicted."""
        if not hasattr(self, "pool"):
            return
        for req in [*self.running(), *self.running(prefilled=False)]:
            self.pool.finish(req, insert=req.prefilled)
        for req in list(self.pool.waiting):
            self.pool.leave(req)
        self.pool.check()
        self.pool.evict(10_000)
        self.pool.check()
        assert self.pool.allocator.available_size() == self.pool.size


TestSegmentedMachine = SegmentedMachine.TestCase
TestSegmentedMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
