"""What a scheduler does around each forward pass, without a model; the KV itself is in ``test_segmented_cache``."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from sglang_patches.forward.decode_rows import DecodeRows
from sglang_patches.forward.kv_forward import KvForward
from sglang_patches.hooks.model_runner import around_forward


@pytest.mark.parametrize("segments", [False, True])
def test_a_step_is_not_planned_before_the_device_has_the_plan_of_the_last_one(segments: bool) -> None:
    """Of the second of two steps, whatever it is: the plan lies in memory that the first one's is copied from."""
    runner: Any = SimpleNamespace(war_fastpath_read_done_event=None, hive_decode_rows=DecodeRows(0, 0))
    if segments:
        cache: Any = SimpleNamespace(store=SimpleNamespace(pending=[]))
        runner.hive_kv = KvForward(runner, cache, Mock(), DecodeRows(0, 0))
    happened = []

    def forward(self: Any, batch: Any) -> str:
        happened.append(batch.rids)
        runner.war_fastpath_read_done_event = Mock(synchronize=lambda: happened.append("planned"))
        return "output"

    for rid in ("first", "second"):
        assert around_forward(forward, runner, Mock(rids=[rid])) == "output"
        # As the scheduler does behind each launch.
        runner.war_fastpath_read_done_event = None
    assert happened == [["first"], "planned", ["second"]]
