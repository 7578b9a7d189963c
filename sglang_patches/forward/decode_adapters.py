"""Describes the LoRA adapters of a decode step to the device only when they change.

SGLang does it at every step: some fifteen small tensors, each allocated in pinned memory and copied.  In searches
with short answers that took a tenth of the scheduler's time (py-spy, an H100).  Hive does less:

- The decode graphs read the adapters of their rows from one set of buffers.  If the rows have the adapters that the
  last step wrote there, nothing is written.  Adapters are written for as many rows as the step's graph has, so a step
  of 9 rows can follow one of 10.
- What is written is computed with NumPy in pinned memory that is allocated once.
- A short extend that will run as decode rows describes the adapter of each row then.  SGLang's description of the
  extend would never be read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from sglang.srt.lora.backend.chunked_backend import ChunkedSgmvLoRABackend
    from sglang.srt.lora.utils import LoRABatchInfo
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
        self._buffers = GraphBuffers(backend.cuda_graph_batch_info)
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
        write: Callable[[], None],
        *,
        use_cuda_graph: bool,
    ) -> None:
        """Describe the adapters of a batch, if need be; ``write`` does it SGLang's way.

        ``use_cuda_graph``: whether SGLang would write to the buffers of the decode graphs.
        """
        if self._rows.fits(batch):
            return
        at = bisect_left(self._sizes, batch.batch_size)
        if not use_cuda_graph or at == len(self._sizes) or batch.replace_embeds is not None:
            if use_cuda_graph:
                self._written = None
            write()
            return
        size = self._sizes[at]
        padded = slots.rows + slots.rows[-1:] * (size - batch.batch_size)
        wanted = AdapterSlots(padded, slots.ranks, slots.scalings)
        if wanted != self._written:
            self._written = None
            self._buffers.write(wanted, self._backend._determine_chunk_size_for_tokens(size))
            self._written = wanted
        self._backend.batch_info = self._backend.cuda_graph_batch_info
        self._backend.lm_head_batch_info = self._backend.lm_head_pass_batch_infos = None


_STAGES = 4
"""Pinned copies of what is written: more than steps that the device can be behind by."""


class _Stage:
    """Pinned memory for one write."""

    def __init__(self, rows: int, segments: int, buffers: int, device: torch.device) -> None:
        on_gpu = device.type == "cuda"

        def pinned(count: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(count, dtype=dtype, pin_memory=on_gpu)

        self.segments = pinned(segments, torch.int32)
        self.starts = pinned(segments + 1, torch.int32)
        self.order = pinned(rows, torch.int32)
        self.rows = pinned(rows, torch.int32)
        self.ranks = pinned(buffers, torch.int32)
        self.scalings = pinned(buffers, torch.float32)
        # torch annotates events in part.
        self.copied: Any = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]


class GraphBuffers:
    """The buffers from which the decode graphs read adapters, written as ``ChunkedSgmvLoRABackend`` does.

    Rows are ordered by adapter and cut into segments of one adapter, of at most ``chunk`` rows each.
    """

    def __init__(self, info: LoRABatchInfo) -> None:
        self._info = info
        assert info.permutation is not None
        assert info.req_seg_indptr is not None
        sizes = len(info.permutation), len(info.weight_indices), len(info.lora_ranks)
        self._stages = cycle([_Stage(*sizes, info.permutation.device) for _ in range(_STAGES)])
        # Each row is a request with one token.
        ends = torch.arange(len(info.req_seg_indptr), dtype=torch.int32)
        info.req_seg_indptr.copy_(ends)

    def write(self, slots: AdapterSlots, chunk: int) -> None:
        """Write the adapters of all rows of a graph; does not wait for the device."""
        stage, info = next(self._stages), self._info
        if stage.copied is not None:
            stage.copied.synchronize()
        rows = np.array(slots.rows, np.int32)
        buffers, counts = np.unique(rows, return_counts=True)
        pieces = -(-counts // chunk)
        total = int(pieces.sum())
        lengths = np.full(total, chunk)
        lengths[pieces.cumsum() - 1] = counts - (pieces - 1) * chunk
        segments, starts = stage.segments.numpy(), stage.starts.numpy()
        segments[:total], segments[total:] = np.repeat(buffers, pieces), 0
        starts[0], starts[1 : total + 1], starts[total + 1 :] = 0, lengths.cumsum(), len(rows)
        stage.order.numpy()[: len(rows)] = np.argsort(rows, kind="stable")
        stage.rows.numpy()[: len(rows)] = rows
        stage.ranks.numpy()[:] = slots.ranks
        stage.scalings.numpy()[:] = slots.scalings
        info.bs, info.num_segments, info.max_len = len(rows), total, chunk
        for target, source in (
            (info.weight_indices, stage.segments),
            (info.seg_indptr, stage.starts),
            (info.permutation, stage.order),
            (info.req_weight_indices, stage.rows),
            (info.lora_ranks, stage.ranks),
            (info.scalings, stage.scalings),
        ):
            assert target is not None
            target.copy_(source, non_blocking=True)
        if stage.copied is not None:
            stage.copied.record()
