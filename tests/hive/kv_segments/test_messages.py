"""Messages: who may name which, and where the tokens of a call go."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hive.server.kv_segments import messages
from hive.server.kv_segments.messages import MAX_PARENTS, Layout, Message, MessageRegistry
from hive.server.kv_segments.request import WireSpan
from hive.server.request_tag import RequestError

CONTEXT = 100


def registry(**lengths: int) -> MessageRegistry:
    """A registry with one tenant's messages of so many tokens."""
    made = MessageRegistry(CONTEXT)
    for id, tokens in lengths.items():
        made.add(Message(id, "t", "s", array("q", range(tokens)), 0))
    return made


def layout(made: MessageRegistry, own: int = 1, most_new: int = 0, **call: Any) -> Layout:
    return made.layout("t", call, own, most_new)


def refusal(made: MessageRegistry, own: int = 1, most_new: int = 0, **call: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        layout(made, own, most_new, **call)
    assert len(str(caught.value)) < 400
    return caught.value


# Positions.


def test_without_parents_a_message_is_at_the_beginning() -> None:
    found = layout(registry())
    assert (found.parents, found.offsets, found.new_offset, found.context) == ((), (), 0, 0)
    assert layout(registry(), new_offset=7).new_offset == 7
    assert found.spans() == ()
    assert found.input_ids([4, 5]) == [4, 5]


@pytest.mark.parametrize(
    ("call", "offsets", "new_offset"),
    [
        ({}, (0, 5, 8), 12),
        ({"offsets": None, "new_offset": None}, (0, 5, 8), 12),
        ({"offsets": [None, None, None]}, (0, 5, 8), 12),
        # A gap moves whatever comes behind it.
        ({"offsets": [10, None, None]}, (10, 15, 18), 22),
        ({"offsets": [None, 20, None]}, (0, 20, 23), 27),
        # Overlaps: all at the same place.
        ({"offsets": [0, 0, 0]}, (0, 0, 0), 4),
        # Out of order: behind the last one of the list, not behind the farthest.
        ({"offsets": [30, 10, 0]}, (30, 10, 0), 4),
        ({"offsets": [30, None, 0], "new_offset": None}, (30, 35, 0), 4),
        ({"new_offset": 0}, (0, 5, 8), 0),
        ({"new_offset": 60}, (0, 5, 8), 60),
    ],
)
def test_what_is_omitted_follows_the_parent_before_it(
    call: dict[str, Any], offsets: tuple[int, ...], new_offset: int
) -> None:
    found = layout(registry(a=5, b=3, c=4), parents=["a", "b", "c"], **call)
    assert found.offsets == offsets
    assert found.new_offset == new_offset
    assert found.context == 12


def test_where_a_parent_was_made_does_not_matter() -> None:
    made = registry()
    made.add(Message("a", "t", None, array("q", [1, 2]), 40))
    assert layout(made, parents=["a"]).offsets == (0,)


@given(st.lists(st.tuples(st.integers(1, 6), st.none() | st.integers(0, 40)), max_size=4), st.data())
def test_a_layout_says_of_each_token_where_it_is(
    parents: list[tuple[int, int | None]], data: st.DataObject
) -> None:
    made = MessageRegistry(CONTEXT)
    next_token = 0
    for at, (tokens, _) in enumerate(parents):
        made.add(Message(f"m{at}", "t", None, array("q", range(next_token, next_token + tokens)), 9))
        next_token += tokens
    wanted_new = data.draw(st.none() | st.integers(0, 40))
    found = layout(
        made,
        parents=[f"m{at}" for at in range(len(parents))],
        offsets=[offset for _, offset in parents],
        new_offset=wanted_new,
    )
    positions: list[int] = []
    behind = 0
    for tokens, offset in parents:
        start = behind if offset is None else offset
        positions += range(start, start + tokens)
        behind = start + tokens
    new_offset = behind if wanted_new is None else wanted_new
    own = [1000, 1001]
    ids = found.input_ids(own)
    assert ids == [*range(next_token), *own]
    of_spans = [
        span.position + index - span.start for span in found.spans() for index in range(span.start, span.end)
    ]
    assert of_spans == positions
    request = found.request("none")
    assert (request.spans, request.keeps, request.choreographed) == (found.spans(), (), True)
    # What is behind the last span is shifted as a whole.
    assert [index + request.shift for index in range(found.context, len(ids))] == [new_offset, new_offset + 1]


def test_spans_name_their_messages() -> None:
    found = layout(registry(a=5, b=3), parents=["b", "a"], offsets=[None, 50])
    assert found.spans() == (WireSpan(0, 3, 0, "message:b"), WireSpan(3, 8, 50, "message:a"))


def test_a_message_ends_behind_its_last_token() -> None:
    assert Message("a", None, None, array("q", [5, 6, 7]), 10).end == 13


# Bounds.


def test_the_context_bounds_tokens_and_positions() -> None:
    made = registry(a=60, b=30)
    assert layout(made, 4, 6, parents=["a", "b"]).new_offset == 90
    assert refusal(made, 11, 0, parents=["a", "b"]).field == "parents"
    # Though their positions would fit, their slots would not.
    assert refusal(made, 11, 0, parents=["a", "b"], offsets=[0, 0], new_offset=0).field == "parents"
    assert layout(made, 4, 6, parents=["b"], new_offset=90).new_offset == 90
    assert refusal(made, 11, 0, parents=["b"], new_offset=90).field == "new_offset"
    assert layout(made, parents=["a"], offsets=[40], new_offset=0).offsets == (40,)
    assert refusal(made, parents=["a"], offsets=[41], new_offset=0).field == "offsets[0]"
    assert refusal(made, parents=["b", "a"], offsets=[50, None]).field == "offsets[1]"


def test_a_message_behind_a_full_context_is_refused() -> None:
    assert refusal(registry(a=100), parents=["a"]).field == "new_offset"
    assert refusal(registry(a=100, b=1), parents=["a", "b"]).field == "offsets[1]"
    assert refusal(registry(), 101).field == "parents"


@pytest.mark.parametrize("value", [-1, CONTEXT, True, 1.0, "1", [], 10**400])
def test_positions_are_integers_within_the_context(value: Any) -> None:
    made = registry(a=5)
    assert refusal(made, new_offset=value).field == "new_offset"
    assert refusal(made, parents=["a"], offsets=[value]).field == "offsets[0]"


@pytest.mark.parametrize("value", [[], [1, 2], [None, None], 5, "1", {"a": 1}, False])
def test_there_are_as_many_offsets_as_parents(value: Any) -> None:
    assert refusal(registry(a=5), parents=["a"], offsets=value).field == "offsets"


def test_without_parents_there_are_no_offsets() -> None:
    assert layout(registry(), offsets=[]).offsets == ()
    assert refusal(registry(), offsets=[3]).field == "offsets"


# Parents.


@pytest.mark.parametrize("value", ["a", 5, {"a": 1}, True])
def test_parents_are_a_list(value: Any) -> None:
    assert refusal(registry(a=5), parents=value).field == "parents"


@pytest.mark.parametrize("value", ["other", "A", "", None, 5, ["a"], {"id": "a"}])
def test_unknown_parents_are_named(value: Any) -> None:
    error = refusal(registry(a=5), parents=["a", value])
    assert error.field == "parents[1]"
    assert "must be the id of an existing message" in error.rule


def test_a_parent_is_given_once() -> None:
    error = refusal(registry(a=5, b=5), parents=["a", "b", "a"])
    assert error.field == "parents[2]"
    assert "twice" in error.rule


def test_there_are_not_too_many_parents() -> None:
    assert refusal(registry(a=1), parents=["a"] * (MAX_PARENTS + 1)).field == "parents"
    assert refusal(registry(a=1), parents=["b"] * MAX_PARENTS).field == "parents[0]"


def test_a_call_sees_none_of_those_beside_it() -> None:
    with pytest.raises(RequestError) as caught:
        registry(a=5).layout("t", {"parents": ["a", "b"]}, 1, 0, siblings=["c", "b"])
    assert caught.value.field == "parents[1]"
    assert "which this request makes" in caught.value.rule


# Tenants and sessions.


def test_a_tenant_sees_its_own_messages_alone() -> None:
    made = registry(a=5)
    made.add(Message("a", None, None, array("q", [1]), 0))
    made.add(Message("b", "u", None, array("q", [1, 2]), 0))
    assert [made.layout(tenant, {"parents": ["a"]}, 1, 0).context for tenant in ("t", None)] == [5, 1]
    for tenant, id in (("u", "a"), ("t", "b"), (None, "b")):
        assert made.get(tenant, id) is None
        with pytest.raises(RequestError, match="must be the id of an existing message"):
            made.layout(tenant, {"parents": [id]}, 1, 0)
    assert made.remove("u", "a") is None
    assert len(made) == 3


def test_a_deleted_message_is_unknown() -> None:
    made = registry(a=5)
    removed = made.remove("t", "a")
    assert removed is not None
    assert len(removed.tokens) == 5
    assert made.remove("t", "a") is None
    assert refusal(made, parents=["a"]).field == "parents[0]"


def test_messages_die_with_their_session() -> None:
    made = MessageRegistry(CONTEXT)
    for id, tenant, session in (
        ("a", "t", "s"),
        ("b", "t", "s"),
        ("c", "t", "r"),
        ("d", "t", None),
        ("e", "u", "s"),
    ):
        made.add(Message(id, tenant, session, array("q", [1]), 0))
    assert [message.id for message in made.end_session("t", "s")] == ["a", "b"]
    assert made.end_session("t", "s") == []
    assert made.get("t", "a") is None
    assert [made.get("t", "c"), made.get("t", "d"), made.get("u", "e")].count(None) == 0


# Ids.


def test_ids_are_made_or_chosen() -> None:
    made = registry(a=5)
    assert made.new_id("t", "own.id:/@-_1", "id") == "own.id:/@-_1"
    assert made.new_id("u", "a", "id") == "a"
    ids = {made.new_id("t", None, "id") for _ in range(50)}
    assert len(ids) == 50
    # A client may name one that it did not choose.
    assert all(made.new_id("t", id, "id") == id for id in ids)


@pytest.mark.parametrize("value", ["", "a" * 129, "a b", "ä", "a\n", 5, True, ["a"], {}])
def test_malformed_ids_are_refused(value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        registry().new_id("t", value, "id")
    assert caught.value.field == "id"
    assert len(str(caught.value)) < 400


def test_a_taken_id_is_refused_until_it_is_deleted() -> None:
    made = registry(a=5)
    with pytest.raises(RequestError, match="must be new"):
        made.new_id("t", "a", "id")
    made.remove("t", "a")
    assert made.new_id("t", "a", "id") == "a"


def test_there_is_an_end_to_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_MESSAGES", 2)
    made = registry(a=5, b=5)
    with pytest.raises(RequestError, match="2 messages"):
        made.new_id("t", None, "id")
    made.remove("t", "b")
    assert made.new_id("t", "b", "id") == "b"


def test_nobody_else_makes_a_message_of_an_id_that_is_being_made() -> None:
    made = MessageRegistry(CONTEXT)
    with made.making("t", "a", None) as wanted:
        with pytest.raises(RequestError) as refused, made.making("t", "a", None):
            pass
        assert refused.value.field == "id"
        with pytest.raises(RequestError):
            made.new_id("t", "a", "id")
        # Another tenant's is another message.
        assert made.new_id("u", "a", "id") == "a"
        assert wanted()
    assert made.new_id("t", "a", "id") == "a"


def test_a_message_whose_session_ends_while_it_is_made_is_not_wanted_any_more() -> None:
    made = MessageRegistry(CONTEXT)
    with made.making("t", "a", "s") as wanted, made.making("u", "a", "s") as of_another:
        assert made.end_session("t", "s") == []
        assert not wanted()
        assert of_another()


@pytest.mark.parametrize(
    ("own", "most_new", "field"),
    [
        (5, 100, "sampling_params.max_new_tokens"),
        (95, 1, "parents"),
        (90, 20, "sampling_params.max_new_tokens"),
    ],
)
def test_what_leaves_no_room_is_named(own: int, most_new: int, field: str) -> None:
    with pytest.raises(RequestError) as refused:
        layout(registry(a=5), own, most_new, parents=["a"])
    assert refused.value.field == field
