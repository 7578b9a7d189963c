"""Hook on ``ModelRunner.forward``: runs short extends as decode rows, and places the KV that a batch reads.

All of it runs on the stream of the forward pass, in the order that the scheduler decided.
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
    """Place the KV first if there is a segment store, then run the batch, as decode rows if it is a short extend.

    FlashInfer plans a decode step in pinned memory, in one buffer per graph size, and never waits for the copy to the
    device.  SGLang runs nothing long before that copy, but Hive runs copies and forward passes, so the next plan
    could overwrite the buffer before it is copied.  Each step therefore waits until the device has the previous
    step's plan, which is nearly always the case already.
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
