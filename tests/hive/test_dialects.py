"""Other systems' sessions and hints: which field counts, and that nothing in them can do harm."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hive_frontend.wire import is_name
from hypothesis import given
from hypothesis import strategies as st

from hive.server.dialects import SESSION_HEADERS, foreign_body, foreign_headers, foreign_text
from hive.server.request_tag import RequestTag

UUID = "d2e70091-3007-41a3-a916-cb8b0d3098de"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
PLACES = ("nvext", "agent_context", "agent_hints", "session_control", "metadata", "session_params")
KEYS = (*PLACES, "session_id", "trajectory_id", "user_id", "id", "priority", "action", "prompt_cache_key")
BODIES = st.recursive(
    JSON | st.just(f"user_1_account__session_{UUID}"),
    lambda inner: st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=12,
)


@pytest.mark.parametrize("name", SESSION_HEADERS)
def test_each_header_names_a_session(name: str) -> None:
    assert foreign_headers([(b"accept", b"*/*"), (name.encode(), f" {UUID} ".encode())]) == {"session": UUID}


def test_the_first_header_of_the_table_counts() -> None:
    headers = [(name.encode(), f"s{rank}".encode()) for rank, name in enumerate(SESSION_HEADERS)]
    for rank in range(len(headers)):
        assert foreign_headers(reversed(headers[rank:])) == {"session": f"s{rank}"}
        assert foreign_headers([(headers[0][0], b"  "), *headers[rank:]])["session"] == f"s{rank}"


@pytest.mark.parametrize(("value", "event"), [(b"true", "end"), (b"1", "end"), (b"false", None), (b"", None)])
def test_a_final_request_ends_its_session(value: bytes, event: str | None) -> None:
    assert foreign_headers([(b"x-dynamo-session-final", value)]).get("expects_event") == event


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ({}, {}),
        ({"user": "u", "safety_identifier": "u", "previous_response_id": "r"}, {}),
        ({"session_id": "s"}, {"session": "s"}),
        ({"session_params": {"id": "s"}}, {"session": "s"}),
        ({"nvext": {"agent_context": {"session_id": "run", "trajectory_id": "run:a"}}}, {"session": "run:a"}),
        ({"nvext": {"agent_context": {"session_id": "run"}}, "session_id": "s"}, {"session": "run"}),
        (
            {"nvext": {"session_control": {"session_id": "a", "action": "close"}}},
            {"session": "a", "expects_event": "end"},
        ),
        ({"nvext": {"agent_context": {"trajectory_final": True}}}, {"expects_event": "end"}),
        ({"nvext": {"agent_hints": {"priority": 5, "osl": 7}}}, {"kv_priority": 5}),
        ({"nvext": {"agent_hints": {"priority": 2**40}}}, {"kv_priority": 100}),
        ({"nvext": {"agent_hints": {"priority": True}}}, {}),
        ({"metadata": {"user_id": f"user_{'0' * 64}_account__session_{UUID}"}}, {"session": UUID}),
        ({"metadata": {"user_id": orjson.dumps({"session_id": UUID}).decode()}}, {"session": UUID}),
        ({"metadata": {"user_id": "{broken"}}, {}),
        ({"metadata": {"user_id": "somebody"}}, {}),
        ({"prompt_cache_key": UUID}, {"session": UUID}),
        ({"prompt_cache_key": "ses_4kq2Bcd0123456789"}, {"session": "ses_4kq2Bcd0123456789"}),
        ({"prompt_cache_key": "my-app"}, {}),
    ],
)
def test_a_body_says_what_its_system_documents(body: dict[str, Any], found: dict[str, Any]) -> None:
    assert foreign_body(body) == found
    assert foreign_text(orjson.dumps(body)) == found


def test_a_forbidden_name_becomes_a_hash() -> None:
    (name,) = foreign_body({"session_id": "two words"}).values()
    assert is_name(name)
    assert foreign_body({"session_id": "two words "}) == {"session": name}
    assert foreign_body({"session_id": "two  words"}) != {"session": name}


@given(BODIES)
def test_whatever_a_body_says_is_a_valid_tag(body: Any) -> None:
    if isinstance(body, dict):
        RequestTag.parse(
            {name: value for name, value in foreign_body(body).items() if name != "expects_event"}
        )


@given(st.binary(max_size=60))
def test_bytes_that_are_no_json_say_nothing(raw: bytes) -> None:
    foreign_text(raw)
    assert foreign_text(b'[{"nvext": 1}]') == {}


@given(
    st.lists(st.tuples(st.sampled_from([name.encode() for name in SESSION_HEADERS]), st.binary(max_size=40)))
)
def test_any_header_is_read_or_ignored(headers: list[tuple[bytes, bytes]]) -> None:
    RequestTag.parse(foreign_headers(headers))
