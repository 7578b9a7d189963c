"""The search finds the paragraph that a reader would turn to."""

from __future__ import annotations

import pytest

from examples.rtl_repair.designs import design
from examples.rtl_repair.text_search import reference, search, words


@pytest.mark.parametrize(
    ("query", "file", "heading"),
    [
        ("blocking and non-blocking assignment", "assignments.md", "Blocking"),
        ("polarity of an active low reset", "resets.md", "Polarity"),
        ("asynchronous reset with negedge rst_n", "resets.md", "Asynchronous reset"),
        ("comparison of signed numbers", "widths_and_sign.md", "Signed numbers"),
        ("latch: combinational block without default", "branches_and_latches.md", "Latches"),
        ("next state of a machine", "state_machines.md", "usual form"),
        ("fifo full empty pointers", "queues_and_handshakes.md", "Queues with pointers"),
        ("gray code", "counters_and_off_by_one.md", "Gray code"),
        ("polynomial feedback of a crc", "operators.md", "Checksums"),
        ("FAIL 35 valid expected 1 got 0", "testbenches_and_timing.md", "Reading a failure"),
    ],
)
def test_the_reference_answers(query: str, file: str, heading: str) -> None:
    best = search(query, reference())[0]
    assert best.source == file
    assert heading in best.text


def test_the_reference_is_of_some_length() -> None:
    assert len(reference()) >= 8
    for name, text in reference().items():
        assert 400 <= len(text.split()) <= 800, name


def test_passages_say_where_they_stand() -> None:
    source = design("sync_fifo").source
    best = search("almost_full", {"notes": "nothing of the kind", "design.v": source}, limit=1)
    assert len(best) == 1
    assert best[0].source == "design.v"
    lines = source.splitlines()
    assert best[0].text.splitlines()[0] == lines[best[0].line - 1]
    assert "almost_full" in best[0].text


def test_passages_are_ordered_and_limited() -> None:
    texts = {"a": "one two\n\ntwo\n\nthree", "b": "two two two\n\nfour"}
    found = search("two", texts, limit=10)
    assert [passage.score for passage in found] == sorted((p.score for p in found), reverse=True)
    assert {passage.text for passage in found} == {"one two", "two", "two two two"}
    assert [(p.source, p.line) for p in found if p.text == "two"] == [("a", 3)]
    assert search("two", texts, limit=2) == found[:2]
    assert search("five", texts) == ()
    assert search("two", {}) == ()


def test_code_is_not_split_and_headings_lead_on() -> None:
    text = "# Title\n\nFor example:\n\n```verilog\na\n\nb\n```\n\nlast"
    assert [passage.text for passage in search("title last", {"x": text})] == [
        "last",
        "# Title\nFor example:\n```verilog\na\nb\n```",
    ]


def test_names_are_split_into_words() -> None:
    assert words("writePointer_next <= 8'd12; // Resets") == [
        *("write", "pointer", "next", "8", "d", "12", "reset"),
    ]
