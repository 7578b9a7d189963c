"""The eviction bench before anything is replayed: traffic, the order of events, and which tokens are the same."""

from __future__ import annotations

from array import array
from itertools import pairwise

import pytest

from bench.eviction.schedule import PoolTooSmall, most_running, schedule
from bench.eviction.workload import (
    SPAMMER,
    SYSTEM_TOKENS,
    Call,
    Chat,
    Flood,
    Generator,
    Inflating,
    Rtl,
    Session,
    Slot,
    Tokens,
    Traffic,
    traced,
)
from bench.traces.pool import hot_working_set
from bench.traces.prefix_tree import PrefixTree
from bench.traces.trace import Event, Request, Trace


def ids(*tokens: int) -> Tokens:
    return array("q", tokens)


def common(one: Tokens, other: Tokens) -> int:
    return next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def one_after_another(requests: list[Request]) -> Trace:
    events: list[Event] = []
    for number in range(len(requests)):
        events += [("start", number), ("finish", number)]
    return Trace(requests, events)


SMALL = Rtl(slots=2, sessions=2, rounds=3, compact=2)


@pytest.mark.parametrize("traffic", [SMALL, Flood(SMALL, 5), Inflating(SMALL, 5), Chat(sessions=20)])
def test_traffic_is_that_of_its_seed(traffic: Traffic) -> None:
    assert traced(traffic.slots_of(Generator(3))) == traced(traffic.slots_of(Generator(3)))
    assert traced(traffic.slots_of(Generator(3))) != traced(traffic.slots_of(Generator(4)))


@pytest.mark.parametrize("traffic", [SMALL, Flood(SMALL, 5), Inflating(SMALL, 5), Chat(sessions=20)])
def test_what_happens_to_a_request_happens_once_and_in_order(traffic: Traffic) -> None:
    trace = traced(traffic.slots_of(Generator(0)))
    places: dict[tuple[str, int | str], int] = {
        (kind, what): place for place, (kind, what) in enumerate(trace.events)
    }
    assert len(places) == len(trace.events)
    last: dict[str, int] = {}
    for number, request in enumerate(trace.requests):
        assert places["start", number] < places["finish", number]
        if request.session is not None:
            # A session's calls follow each other.
            assert last.get(request.session, -1) < places["start", number]
            last[request.session] = places["finish", number]
    ended = {what: place for (kind, what), place in places.items() if kind == "end"}
    assert ended.keys() == last.keys()
    assert all(last[session] < place for session, place in ended.items() if isinstance(session, str))


def test_rtl_histories_grow_until_they_are_compacted() -> None:
    (slot,) = Rtl(rounds=4, compact=3).slots_of(Generator(0))
    (session,) = slot.sessions
    patcher = [call for call in session.calls if call.agent == "Patcher"]
    assert len(patcher) == 4
    shared = [common(before.prompt + before.output, after.prompt) for before, after in pairwise(patcher)]
    assert shared[:2] == [len(call.prompt) + len(call.output) for call in patcher[:2]]
    assert SYSTEM_TOKENS["Patcher"] < shared[2] < len(patcher[2].prompt)


def test_a_preamble_is_shared_by_all_agents() -> None:
    trace = traced(Rtl(rounds=2, preamble=50, search_p=1.0).slots_of(Generator(0)))
    assert {request.agent for request in trace.requests} == set(SYSTEM_TOKENS)
    assert {tuple(request.prompt[:50]) for request in trace.requests} == {
        tuple(trace.requests[0].prompt[:50])
    }


def test_the_spammer_is_an_agent_with_a_session() -> None:
    for traffic in (Flood(SMALL, 7), Inflating(SMALL, 7)):
        trace = traced(traffic.slots_of(Generator(0)))
        spam = [request for request in trace.requests if request.agent == SPAMMER]
        assert len(spam) == 7
        assert len({request.session for request in spam}) == 1


def test_chats_name_nobody() -> None:
    trace = traced(Chat(sessions=30).slots_of(Generator(0)))
    assert {(request.agent, request.session) for request in trace.requests} == {(None, None)}
    assert all(kind != "end" for kind, _ in trace.events)


def test_a_prefix_tree_counts_shared_tokens_once() -> None:
    trace = one_after_another(
        [
            Request("a", None, ids(1, 2, 3), ids(4, 9)),
            Request("a", None, ids(1, 2, 3, 4, 5), ids()),
            Request("a", None, ids(1, 2, 7), ids(8, 9)),
        ]
    )
    tree = PrefixTree(trace)
    # 1 2, which two requests share; 3, 4, 5 and 7, where prompts end or are one token short of it; 8 of an output,
    # but not 9: nobody reads it.
    assert sorted(tree.sizes) == [1, 1, 1, 1, 1, 2]
    assert [tree.tokens(path) for path in tree.prompts] == [3, 5, 3]
    assert [tree.tokens(path) for path in tree.kept] == [4, 5, 4]
    assert [[tree.ends[node] for node in path] for path in tree.kept] == [[2, 3, 4], [2, 3, 4, 5], [2, 3, 4]]
    assert tree.kept[1][:3] == tree.kept[0]
    assert tree.prompts[2][0] == tree.prompts[0][0]


def test_a_prefix_tree_has_every_token_of_every_request() -> None:
    trace = traced(SMALL.slots_of(Generator(1)))
    tree = PrefixTree(trace)
    for request, prompt, kept in zip(trace.requests, tree.prompts, tree.kept, strict=True):
        assert tree.tokens(prompt) == len(request.prompt)
        assert tree.tokens(kept) == len(request.kept) == len(request.prompt) + len(request.output) - 1
        assert kept[: len(prompt)] == prompt
    for one, path in zip(trace.requests[:20], tree.kept, strict=False):
        for other, against in zip(trace.requests[:20], tree.kept, strict=False):
            shared = [node for node, same in zip(path, against, strict=False) if node == same]
            assert tree.tokens(shared) == common(one.kept, other.kept)


def test_a_schedule_of_a_large_pool_is_the_trace() -> None:
    trace = traced(SMALL.slots_of(Generator(0)))
    assert schedule(trace, PrefixTree(trace), 10**6) == trace.events


def test_who_finds_no_room_waits_and_whoever_came_later_waits_behind() -> None:
    requests = [
        Request("a", "x", ids(1, 2, 3, 4), ids(5, 6)),
        Request("a", "y", ids(7, 8, 9, 10, 11), ids(12)),
        Request("a", "z", ids(1, 2), ids(5)),
    ]
    events: list[Event] = [
        ("start", 0),
        ("start", 1),
        ("start", 2),
        ("finish", 1),
        ("end", "y"),
        ("finish", 0),
        ("finish", 2),
        ("end", "z"),
    ]
    trace = Trace(requests, events)
    # The first needs 4 + 2 + 1 tokens, the second 5 + 1 + 1: not both, although the third's prompt is there already.
    assert schedule(trace, PrefixTree(trace), 13) == [
        ("start", 0),
        ("finish", 0),
        ("start", 1),
        # It should have finished long ago.
        ("finish", 1),
        ("start", 2),
        ("end", "y"),
        ("finish", 2),
        ("end", "z"),
    ]
    assert schedule(trace, PrefixTree(trace), 14 + 2) == events


def test_a_request_that_never_fits_is_an_error() -> None:
    trace = one_after_another([Request("a", None, ids(1, 2, 3), ids(4, 5))])
    tree = PrefixTree(trace)
    assert schedule(trace, tree, 6) == trace.events
    with pytest.raises(PoolTooSmall, match="needs 6 of a pool of 5"):
        schedule(trace, tree, 5)


def test_a_schedule_never_holds_more_than_the_pool() -> None:
    trace = traced(Rtl(slots=4, sessions=1, rounds=3).slots_of(Generator(0)))
    tree = PrefixTree(trace)
    pool = 9000
    running: set[int] = set()
    events = schedule(trace, tree, pool)
    assert events != trace.events
    assert sorted(map(str, events)) == sorted(map(str, trace.events))
    for kind, what in events:
        if kind != "end":
            assert isinstance(what, int)
            (running.add if kind == "start" else running.remove)(what)
            held = {node for number in running for node in tree.prompts[number]}
            outputs = sum(len(trace.requests[number].output) for number in running)
            assert tree.tokens(held) + outputs <= pool
    assert 1 <= most_running(events) <= most_running(trace.events) == 4


def test_the_order_of_a_slot_and_its_times() -> None:
    call = Call("a", ids(1, 2), ids(3), think_s=0.0)
    early = Slot(0.0, [Session("first", [call, call._replace(think_s=100.0)]), Session("second", [call])])
    late = Slot(50.0, [Session("third", [call])])
    kinds = [(kind, what) for kind, what in traced([early, late]).events]
    assert kinds == [
        ("start", 0),
        ("finish", 0),
        ("start", 1),
        ("finish", 1),
        ("end", "third"),
        ("start", 2),
        ("finish", 2),
        ("end", "first"),
        ("start", 3),
        ("finish", 3),
        ("end", "second"),
    ]


def test_the_hot_working_set_is_what_hot_agents_of_live_sessions_asked_last() -> None:
    requests = [
        Request("Patcher", "x", ids(1, 2, 3, 4), ids(5, 6)),  # holds 5
        Request("Summary", "x", ids(*range(100, 200)), ids(7)),  # still 5
        Request("Viewer", "y", ids(1, 2, 9), ids(8)),  # one more: 6
        Request("Patcher", "x", ids(1, 2, 3), ids(4, 5)),  # instead of the first: 4 and 1
        Request("Viewer", "z", ids(20, 21), ids(22, 23)),  # x and y are over, one without a word: 3
    ]
    trace = one_after_another(requests)
    events = [*trace.events]
    events.insert(events.index(("finish", 3)) + 1, ("end", "x"))
    trace = Trace(requests, events)
    assert hot_working_set(trace, PrefixTree(trace)) == 5
    assert (
        hot_working_set(
            Trace(requests[3:], [("start", 0), ("start", 1)]), PrefixTree(Trace(requests[3:], []))
        )
        == 6
    )
