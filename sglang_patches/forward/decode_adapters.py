"""Describes the LoRA adapters of a decode step to the device only when they change.

SGLang does it at every step: some fifteen small tensors, each allocated in pinned memory and copied.  In searches
with short answers that took a tenth of the scheduler's time (py-spy, an H100).  Two cases need none of it:

- The decode graphs read the adapters of their rows from one set of buffers.  If the rows have the adapters that the
  last step wrote there, nothing is written.  Adapters are written for as many rows as the step's graph has, so a step
  of 9 rows can follow one of 10.
- A short extend that will run as decode rows describes the adapter of each row then.  SGLang's description of the
  extend would never be read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang.srt.lora.backend.chunked_backend import ChunkedSgmvLoRABackend
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner

    from sglang_patches.forward.decode_rows import DecodeRows


@dataclass(slots=True)
class AdapterSlots:
    """The adapters of a batch, as the kernels read them."""

    rows: list[int]
    """For each row, the buffer that holds its adapter's weights."""
    ranks: list[int]
    """For each buffer, the rank of its adapter; 0 if no row uses it."""
    scalings: list[float]
    """For each buffer, the scaling of its adapter; 0 if no row uses it."""


class DecodeAdapters:
    """What the decode graphs' buffers say about adapters."""

    def __init__(self, backend: ChunkedSgmvLoRABackend, rows: DecodeRows, graph_sizes: Sequence[int]) -> None:
        """``graph_sizes``: the numbers of rows for which graphs were captured, ascending."""
        self._backend = backend
        self._rows = rows
        self._sizes = graph_sizes
        self._written: AdapterSlots | None = None

    @classmethod
    def install(cls, runner: ModelRunner, rows: DecodeRows) -> None:
        """Start skipping copies for a model runner if all its decode steps are graphs that read SGLang's buffers."""
        from sglang.srt.lora.backend.chunked_backend import ChunkedSgmvLoRABackend
        from sglang.srt.model_executor.runner import DecodeCudaGraphRunner

        graphs, args = runner.decode_cuda_graph_runner, runner.server_args
        if (
            args.enable_lora
            and rows.max_rows
            and isinstance(graphs, DecodeCudaGraphRunner)
            and not args.enable_two_batch_overlap
            and not args.enable_pdmux
            and isinstance(runner.lora_manager.lora_backend, ChunkedSgmvLoRABackend)
        ):
            backend = runner.lora_manager.lora_backend
            backend.hive_adapters = cls(backend, rows, sorted(graphs.capture_bs))

    def prepare(
        self,
        batch: ForwardBatch,
        slots: AdapterSlots,
        write: Callable[[ForwardBatch, list[int]], None],
        *,
        use_cuda_graph: bool,
    ) -> None:
        """Describe the adapters of a batch, if need be: ``write`` does it SGLang's way for the buffers of all rows.

        ``use_cuda_graph``: whether the batch runs as a decode graph.
        """
        if self._rows.fits(batch):
            return
        at = bisect_left(self._sizes, batch.batch_size)
        if not use_cuda_graph or at == len(self._sizes) or batch.replace_embeds is not None:
            write(batch, slots.rows)
            return
        size = self._sizes[at]
        padded = slots.rows + slots.rows[-1:] * (size - batch.batch_size)
        wanted = AdapterSlots(padded, slots.ranks, slots.scalings)
        if wanted != self._written:
            self._written = None
            rows = batch.batch_size
            # A copy of a batch takes as long as the rest.
            batch.batch_size = size
            try:
                write(batch, padded)
            finally:
                batch.batch_size = rows
            self._written = wanted
            return
        self._backend.batch_info = self._backend.cuda_graph_batch_info
        self._backend.lm_head_batch_info = self._backend.lm_head_pass_batch_infos = None
