"""The tag of a request: what is read, what is refused, and what a message says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
from hive_frontend.wire import Expects, Tag
from hypothesis import given
from hypothesis import strategies as st

from hive.server.eviction.hints import Hint
from hive.server.request_checks.hints import hints_of
from hive.server.request_tag import (
    RequestError,
    RequestTag,
    foreign_tag,
    header_tag,
    shown,
    tag_from_headers,
    tag_of_request,
)

FULL: dict[str, Any] = {
    "agent": "solver",
    "session": "run/1",
    "state": "a:b@c",
    "sample": 3,
    "replay": "off",
    "tenant": "t_1.x-y",
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


def outcome(parse: Callable[[Any], RequestTag], given: Any) -> tuple[RequestError | None, RequestTag | None]:
    try:
        return None, parse(given)
    except RequestError as error:
        return error, None


def test_a_full_tag_comes_back_as_it_was() -> None:
    assert RequestTag.parse(FULL).to_dict() == FULL


def test_only_the_fields_that_were_set_come_back() -> None:
    tag = RequestTag.parse({"sample": 0})
    assert tag.to_dict() == {"sample": 0}
    assert tag
    assert not RequestTag.parse({})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("agent", ""),
        ("agent", "x" * 129),
        ("agent", "two words"),
        ("agent", "line\n"),
        ("agent", "ä"),
        ("agent", "٣"),
        ("session", 5),
        ("state", None),
        ("tenant", ["a"]),
        ("sample", -1),
        ("sample", 2**31),
        ("sample", 1.0),
        ("sample", True),
        ("sample", "1"),
        ("replay", "hotspots"),
        ("replay", ["off"]),
    ],
)
def test_a_malformed_value_is_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(RequestError, match=rf"^custom_params\.hive\.{key} must ") as caught:
        RequestTag.parse({key: value})
    assert caught.value.field == f"custom_params.hive.{key}"


def test_the_message_names_field_rule_and_value() -> None:
    with pytest.raises(RequestError) as caught:
        RequestTag.parse({"sample": "x"})
    assert (
        str(caught.value) == "custom_params.hive.sample must be an integer between 0 and 2147483647, got 'x'"
    )


@pytest.mark.parametrize("key", ["agents", "", "__class__", "a b", "é" * 500])
def test_an_unknown_key_is_refused(key: str) -> None:
    with pytest.raises(RequestError, match="is unknown, the fields are agent, session"):
        RequestTag.parse({key: "x"})


@pytest.mark.parametrize("mapping", [None, [], "x", 5])
def test_a_tag_is_an_object(mapping: Any) -> None:
    with pytest.raises(RequestError, match=r"^custom_params\.hive must be an object"):
        RequestTag.parse(mapping)


@pytest.mark.parametrize("prefix", ["x-hive-", "x-request-id-hive-"])
def test_headers_mirror_the_body(prefix: str) -> None:
    headers = [(f"{prefix}{key}".encode(), str(value).encode()) for key, value in FULL.items()]
    assert tag_from_headers([(b"host", b"x"), *headers]).to_dict() == FULL
    assert not tag_from_headers([(b"host", b"x")])


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ([(b"x-hive-agents", b"a")], "x-hive-agents is unknown"),
        ([(b"x-hive-", b"a")], "x-hive- is unknown"),
        ([(b"x-hive-sample", b"1.5")], "x-hive-sample must be an integer"),
        ([(b"x-hive-sample", b"-1")], "x-hive-sample must be an integer"),
        ([(b"x-hive-sample", b"9999999999")], "x-hive-sample must be an integer"),
        ([(b"x-hive-sample", b"9" * 10_000)], "x-hive-sample must be an integer"),
        ([(b"x-hive-sample", "²".encode("latin-1"))], "x-hive-sample must be an integer"),
        ([(b"x-hive-agent", b"\xff")], "x-hive-agent must be 1 to 128"),
        ([(b"x-hive-agent", b"a"), (b"x-hive-agent", b"a")], "x-hive-agent must not be given twice"),
        # Nobody may say under one name what a gateway has said under the other.
        (
            [(b"x-hive-tenant", b"a"), (b"x-request-id-hive-tenant", b"b")],
            "x-request-id-hive-tenant must not be given twice",
        ),
        ([(b"x-request-id-hive-agents", b"a")], "x-request-id-hive-agents is unknown"),
        ([(b"x-hive-x-request-id-hive-agent", b"a")], "is unknown"),
    ],
)
def test_a_bad_header_is_refused_by_name(headers: list[tuple[bytes, bytes]], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        tag_from_headers(headers)


@given(JSON)
def test_parsing_anything_gives_a_tag_or_a_request_error(mapping: Any) -> None:
    error, tag = outcome(RequestTag.parse, mapping)
    if tag is None:
        assert len(str(error)) < 400
    else:
        assert RequestTag.parse(tag.to_dict()) == tag


@given(st.lists(st.tuples(st.binary(max_size=8).map(lambda name: b"x-hive-" + name), st.binary())))
def test_any_headers_give_a_tag_or_a_request_error(headers: list[tuple[bytes, bytes]]) -> None:
    error, _ = outcome(tag_from_headers, headers)
    assert error is None or str(error).isprintable()


@given(JSON | st.integers(min_value=2**300) | st.binary())
def test_a_shown_value_is_short_and_printable(value: Any) -> None:
    text = shown(value)
    assert len(text) <= 80
    assert text.isprintable()


def test_the_tag_that_is_read_has_the_fields_that_are_spelt() -> None:
    read = {item.name for item in fields(RequestTag)}
    spelt = Tag.__annotations__.keys() | Expects.__annotations__.keys()
    assert {name.removeprefix("expects_") for name in read} == spelt - {"expects"}


HINTS: dict[str, Any] = {"expects": {"event": "tool", "seconds": 2.5}, "kv_priority": -3, "discard": False}


def test_hints_are_read_flat() -> None:
    flat = {"expects_event": "tool", "expects_seconds": 2.5, "kv_priority": -3, "discard": False}
    assert RequestTag.parse({**FULL, **HINTS}).to_dict() == {**FULL, **flat}
    assert Hint.of(flat) == Hint("tool", 2.5, -3, None, False)
    assert Hint.of({"retain": 60}) == Hint(retain=60)
    assert Hint.of(FULL) is None


@pytest.mark.parametrize(
    ("hints", "field", "rule"),
    [
        ({"expects": "tool"}, "expects", "must be an object"),
        ({"expects": {}}, "expects.event", "must be 'tool' or 'human'"),
        ({"expects": {"event": "lunch"}}, "expects.event", "must be 'tool' or 'human'"),
        ({"expects": {"event": "tool", "minutes": 1}}, "expects.minutes", "is unknown"),
        ({"expects": {"event": "tool", "seconds": -1}}, "expects.seconds", "must be a number of seconds"),
        ({"expects": {"event": "tool", "seconds": None}}, "expects.seconds", "must be a number of seconds"),
        ({"expects_event": "tool"}, "expects_event", "is unknown"),
        ({"kv_priority": 101}, "kv_priority", "must be an integer from -100 to 100"),
        ({"kv_priority": True}, "kv_priority", "must be an integer from -100 to 100"),
        ({"retain": float("nan")}, "retain", "must be a number of seconds"),
        ({"retain": 1e9}, "retain", "must be a number of seconds"),
        ({"discard": 1}, "discard", "must be true or false"),
        ({"retain": 5, "discard": True}, "retain", "must not be combined"),
        ({"retain": 5, "expects": {"event": "end"}}, "retain", "must not be combined"),
    ],
)
def test_a_bad_hint_names_its_field(hints: dict[str, Any], field: str, rule: str) -> None:
    error, _ = outcome(RequestTag.parse, hints)
    assert error is not None
    assert error.field == f"custom_params.hive.{field}"
    assert error.rule.startswith(rule)
    error, _ = outcome(
        lambda fields: hints_of({"hints": [{"session": "s"}, fields]}), {"session": "s", **hints}
    )
    assert error is not None
    assert error.field == f"hints[1].{field}"


def test_headers_carry_hints() -> None:
    headers = [
        (b"x-hive-expects-event", b"tool"),
        (b"x-hive-expects-seconds", b"30"),
        (b"x-hive-kv-priority", b"-5"),
        (b"x-request-id-hive-discard", b"true"),
    ]
    assert tag_from_headers(headers).to_dict() == {
        "expects_event": "tool",
        "expects_seconds": 30.0,
        "kv_priority": -5,
        "discard": True,
    }
    with pytest.raises(RequestError, match="x-hive-expects-seconds needs x-hive-expects-event"):
        tag_from_headers(headers[1:])
    with pytest.raises(RequestError, match="x-hive-discard must be true or false, got 'yes'"):
        tag_from_headers([(b"x-hive-discard", b"yes")])
    with pytest.raises(RequestError, match="x-hive-retain must not be combined"):
        tag_from_headers([*headers, (b"x-hive-retain", b"5")])


def test_headers_override_bodies_which_override_other_systems() -> None:
    header = header_tag.set(RequestTag(expects_event="human"))
    foreign = foreign_tag.set({"session": "theirs", "kv_priority": 1, "expects_event": "end"})
    try:
        body = {"agent": "a", "expects": {"event": "tool", "seconds": 3}}
        assert tag_of_request(body) == {
            "agent": "a",
            "session": "theirs",
            "kv_priority": 1,
            "expects_event": "human",
        }
        assert tag_of_request({"session": "ours", "kv_priority": 9})["session"] == "ours"
        assert "session" not in tag_of_request({"state": "s"}), "its seed would change"
    finally:
        header_tag.reset(header)
        foreign_tag.reset(foreign)


@pytest.mark.parametrize(
    ("body", "session", "message"),
    [
        ([], None, "body must be an object"),
        ({}, None, "hints must be a list of 1 to 256 hints"),
        ({"hints": []}, None, "hints must be a list of 1 to 256 hints"),
        ({"hints": [{}] * 257}, None, "hints must be a list of 1 to 256 hints"),
        (
            {"hints": [{"discard": True}]},
            None,
            r"hints\[0\]\.session must be 1 to 128 characters .* is missing",
        ),
        ({"hints": [{"session": "s", "tenant": "t"}]}, None, r"hints\[0\]\.tenant is unknown"),
        ({"hints": [5]}, None, r"hints\[0\] must be an object"),
        ({"session": "t"}, "s", "session must not be given"),
        ({"state": "a"}, "s", "state needs discard alone"),
        ({"state": "a", "discard": True, "kv_priority": 1}, "s", "state needs discard alone"),
        ({"sample": 1, "discard": True}, "s", "sample needs a state"),
        ({"agent": "a"}, "s", "agent is unknown"),
        ({}, "a b", "session must be 1 to 128 characters"),
    ],
)
def test_bad_hints_are_refused(body: Any, session: str | None, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        hints_of(body, session)


@given(JSON)
def test_any_hints_are_read_or_refused(body: Any) -> None:
    outcome(lambda given: RequestTag(**hints_of(given)[0]), {"hints": [body]})
    outcome(lambda given: RequestTag(**hints_of(given, "s")[0]), body)
