"""What clients declare, and how it travels."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hive.server.kv_segments.request import CONTEXTS, MAX_SPANS, Keep, KvRequest, WireSpan, spans_request
from hive.server.request_tag import RequestError

TOKENS = 20

numbers = st.integers(-(2**31), 2**31)
names = st.sampled_from([*CONTEXTS, "message:m-1"])
requests = st.builds(
    KvRequest,
    spans=st.lists(st.builds(WireSpan, numbers, numbers, numbers, names)).map(tuple),
    keeps=st.lists(st.builds(Keep, numbers, st.none() | numbers, names)).map(tuple),
    shift=numbers,
    choreographed=st.booleans(),
    extra_key=st.text(),
    corrector=st.sampled_from(["none", {"kind": "blend", "share": 0.15, "block": 32}]),
)


@given(requests)
def test_a_request_arrives_as_it_was_sent(request_: KvRequest) -> None:
    assert KvRequest.from_wire(request_.to_wire()) == request_


def test_nothing_declared_is_nothing_asked_for() -> None:
    assert spans_request({}, TOKENS, "s") == KvRequest()
    assert spans_request({"spans": []}, TOKENS, "s", corrector="none") == KvRequest(corrector="none")


def test_spans_are_where_they_say() -> None:
    spec = {
        "spans": [
            {"start": 0, "end": 4},
            {"start": 4, "end": 5, "context": "standalone"},
            {"start": 9, "end": 20, "context": "neutral"},
        ],
        "corrector": {"kind": "first-k", "tokens": 3},
    }
    found = spans_request(spec, TOKENS, "s", corrector="none")
    assert found.spans == (
        WireSpan(0, 4, 0, "producer"),
        WireSpan(4, 5, 4, "standalone"),
        WireSpan(9, 20, 9, "neutral"),
    )
    # In the server's own contexts it is not this request that computes them.
    assert found.keeps == (Keep(0, 4, "producer"),)
    assert found.corrector == spec["corrector"]
    assert (found.shift, found.choreographed) == (0, False)


def test_a_context_for_all_spans_that_name_none() -> None:
    spans = [{"start": 0, "end": 4}, {"start": 4, "end": 6, "context": "producer"}]
    found = spans_request({"spans": spans, "context": "neutral"}, TOKENS, "s")
    assert [span.name for span in found.spans] == ["neutral", "producer"]
    assert found.keeps == (Keep(4, 6, "producer"),)


def test_an_output_is_kept_behind_the_prompt() -> None:
    found = spans_request({"keep_output": True, "spans": [{"start": 1, "end": 2}]}, TOKENS, "s")
    assert found.keeps == (Keep(1, 2, "producer"), Keep(TOKENS, None, "producer"))
    assert spans_request({"keep_output": False}, TOKENS, "s").keeps == ()


def span(**fields: Any) -> dict[str, Any]:
    return {"spans": [{"start": 0, "end": 2}, {"start": 3, "end": 5, **fields}]}


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        *((spec, "s") for spec in (None, [], "spans", 5, True)),
        ({"span": []}, "s.span"),
        ({"a b": []}, "s.'a b'"),
        *(({"spans": value}, "s.spans") for value in (None, "ab", 5, {"start": 0, "end": 1}, True)),
        ({"spans": [{"start": 0, "end": 1}] * (MAX_SPANS + 1)}, "s.spans"),
        *(({"spans": [{"start": 0, "end": 1}, value]}, "s.spans[1]") for value in (None, [1, 2], "ab", 5)),
        (span(begin=3), "s.spans[1].begin"),
        *(
            (span(**{name: value}), f"s.spans[1].{name}")
            for name in ("start", "end")
            for value in (None, True, 3.0, "3", -1, TOKENS + 1, [3], 10**5000)
        ),
        ({"spans": [{"end": 1}]}, "s.spans[0].start"),
        ({"spans": [{"start": 1}]}, "s.spans[0].end"),
        (span(end=3), "s.spans[1].end"),
        (span(end=2), "s.spans[1].end"),
        (span(start=TOKENS, end=TOKENS), "s.spans[1].end"),
        (span(start=1), "s.spans[1].start"),
        *(
            (span(context=value), "s.spans[1].context")
            for value in (None, "", "Neutral", "message:m-1", 5, ["neutral"], {})
        ),
        *(({"context": value}, "s.context") for value in (None, "", "message:m-1", ["neutral"])),
        *(({"keep_output": value}, "s.keep_output") for value in (None, 0, 1, "true", [])),
        ({"corrector": None}, "s.corrector"),
        ({"corrector": "other"}, "s.corrector"),
        ({"corrector": {"kind": "blend", "share": 2}}, "s.corrector.share"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_bad_declaration_is_refused_by_field(spec: Any, field: str) -> None:
    with pytest.raises(RequestError) as caught:
        spans_request(spec, TOKENS, "s")
    assert caught.value.field == field
    assert len(str(caught.value)) < 400


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 25) | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["spans", "context", "corrector", "keep_output", "start", "end", "kind", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(json_values)
def test_whatever_is_declared_is_refused_or_fits_the_prompt(spec: Any) -> None:
    try:
        found = spans_request(spec, TOKENS, "s")
    except RequestError:
        return
    behind = 0
    for part in found.spans:
        assert behind <= part.start < part.end <= TOKENS
        assert part.position == part.start
        behind = part.end
    assert KvRequest.from_wire(found.to_wire()) == found
