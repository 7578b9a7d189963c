"""How full batches are: what ``/hive/stats`` says of one scheduler, and of several."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sglang_patches.http_server import merge_ranks
from sglang_patches.steps import Steps


def batch(mode: str, rows: int) -> Any:
    kinds = SimpleNamespace(is_decode=lambda: mode == "decode", is_extend=lambda: mode == "extend")
    return SimpleNamespace(forward_mode=kinds, reqs=[None] * rows)


def counted(*batches: tuple[str, int]) -> dict[str, float]:
    steps = Steps()
    for mode, rows in batches:
        steps.count(batch(mode, rows))
    return steps.summary()


def test_the_mean_is_that_of_decode_steps() -> None:
    assert counted() == {"extends": 0, "decode_steps": 0, "decoded_rows": 0, "running_mean": 0.0}
    found = counted(("extend", 7), ("decode", 3), ("decode", 4), ("idle", 0))
    assert found == {"extends": 1, "decode_steps": 2, "decoded_rows": 7, "running_mean": 3.5}


def test_ranks_have_one_mean() -> None:
    parts = [{"scheduler": counted(("decode", 10))}, {"scheduler": counted(*[("decode", 2)] * 3)}]
    assert merge_ranks(parts)["scheduler"]["running_mean"] == 4.0
