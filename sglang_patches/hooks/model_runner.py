"""Hook on ``ModelRunner.forward``: short extends go as decode rows, and the KV that a batch reads is put in place.

All of it runs on the stream of the forward pass, in the order in which the scheduler decided it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sglang_patches.forward.decode_rows import DecodeRows
from sglang_patches.forward.kv_forward import KvForward, forward_rows

if TYPE_CHECKING:
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner


def around_forward(
    original: Callable[..., Any], self: ModelRunner, forward_batch: ForwardBatch, *args: Any, **kwargs: Any
) -> Any:
    """Put the KV in place first, where there is a segment store; short extends go as decode rows.

    Flashinfer plans a decode step in pinned memory, one piece for each size of graph, and never waits for the copy.
    SGLang's own steps have nothing before that copy that takes long; Hive's have copies and passes, behind which the
    next plan would overtake it.  So each step waits for the device to have the plan of the one before, which it nearly
    always has by then.
    """
    kv: KvForward | None = getattr(self, "hive_kv", None)
    rows: DecodeRows | None = getattr(self, "hive_decode_rows", None)
    if kv is None and rows is None:
        return original(self, forward_batch, *args, **kwargs)

    def forward(batch: ForwardBatch) -> Any:
        return original(self, batch, *args, **kwargs)

    if (planned := getattr(self, "hive_planned", None)) is not None:
        planned.synchronize()
    if kv is not None:
        output = kv.run(forward_batch, forward)
    else:
        assert rows is not None
        output = forward_rows(rows, forward_batch, forward)
    self.hive_planned = self.war_fastpath_read_done_event
    return output
