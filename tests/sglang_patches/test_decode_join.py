"""Who lends a request the KV that it needs to join the decode batch."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_patches.scheduling.decode_join import _lender

PROMPT = [5, 6, 7]


def request(
    output: list[int], prompt: list[int] = PROMPT, *, ended: bool = False, kv: Any = None, key: str = ""
) -> Any:
    return SimpleNamespace(
        origin_input_ids=array("q", prompt),
        output_ids=array("q", output),
        extra_key=key,
        finished=lambda: ended,
        hive=SimpleNamespace(kv=kv),
    )


def lender(others: list[Any]) -> Any:
    """For a request whose last token is its own, and has no KV yet."""
    req = request([1, 2, 9])
    return _lender(req, len(PROMPT) + 2, others)


def test_one_that_begins_alike_lends() -> None:
    other = request([1, 2, 3, 4])
    assert lender([request([8, 2, 3]), other, request([1, 2, 3])]) is other


def test_a_longer_prompt_is_a_beginning_too() -> None:
    other = request([3], [*PROMPT, 1, 2])
    assert lender([other]) is other


@pytest.mark.parametrize(
    "other",
    [
        request([]),
        request([1, 2]),
        request([1, 3, 9]),
        request([1, 2, 3], [5, 6, 8]),
        request([1, 2, 3], ended=True),
        request([1, 2, 3], kv=object()),
        request([1, 2, 3], key="of another tenant"),
        SimpleNamespace(),
    ],
    ids=["short", "too short", "differs", "prompt", "ended", "placed", "tenant", "health check"],
)
def test_others_do_not(other: Any) -> None:
    assert lender([other]) is None
