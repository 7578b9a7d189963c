"""How full batches are, in ``/hive/stats`` of one scheduler and of several."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sglang_patches.http.hive_routes import merge_ranks
from sglang_patches.scheduling.steps import Steps


def batch(mode: str, rows: int) -> Any:
    # As upstream has it, a mixed batch is an extend, too.
    kinds = SimpleNamespace(
        is_decode=lambda: mode == "decode",
        is_mixed=lambda: mode == "mixed",
        is_extend=lambda: mode in ("extend", "mixed"),
    )
    return SimpleNamespace(forward_mode=kinds, reqs=[None] * rows)


def counted(*batches: tuple[str, int]) -> dict[str, float]:
    steps = Steps()
    for mode, rows in batches:
        steps.count(batch(mode, rows))
    return steps.summary()


def counts(**nonzero: float) -> dict[str, float]:
    names = ("extends", "mixed", "decode_steps", "decoded_rows", "forced_tokens", "running_mean")
    return {**dict.fromkeys(names, 0), **nonzero}


def test_the_mean_is_that_of_decode_steps() -> None:
    assert counted() == counts()
    found = counted(("extend", 7), ("decode", 3), ("decode", 4), ("idle", 0))
    assert found == counts(extends=1, decode_steps=2, decoded_rows=7, running_mean=3.5)


def test_a_step_that_new_requests_are_a_part_of_is_a_decode_step() -> None:
    found = counted(("mixed", 5), ("decode", 3))
    assert found == counts(mixed=1, decode_steps=2, decoded_rows=8, running_mean=4.0)


def test_ranks_have_one_mean() -> None:
    parts = [{"scheduler": counted(("decode", 10))}, {"scheduler": counted(*[("decode", 2)] * 3)}]
    assert merge_ranks(parts)["scheduler"]["running_mean"] == 4.0
