"""Hook on ``ChunkedSgmvLoRABackend``: describes adapters to the device only when they change."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from sglang_patches.forward.decode_adapters import AdapterSlots, DecodeAdapters

if TYPE_CHECKING:
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch


def around_prepare_lora_batch(
    original: Callable[..., None],
    self: Any,
    forward_batch: ForwardBatch,
    weight_indices: list[int],
    lora_ranks: list[int],
    scalings: list[float],
    use_cuda_graph: bool,
    use_prefill_cuda_graph: bool = False,
) -> None:
    """Skip what the device knows already, or will be told row by row."""
    write = partial(
        original,
        self,
        forward_batch,
        weight_indices,
        lora_ranks,
        scalings,
        use_cuda_graph,
        use_prefill_cuda_graph,
    )
    adapters: DecodeAdapters | None = getattr(self, "hive_adapters", None)
    if adapters is None:
        write()
    else:
        slots = AdapterSlots(weight_indices, lora_ranks, scalings)
        adapters.prepare(forward_batch, slots, write, use_cuda_graph=use_cuda_graph)
