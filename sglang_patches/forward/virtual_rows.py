"""Computes middle positions of requests as rows of an ordinary extend batch.

A *virtual row* is a run of positions of a request.  It uses the request's row of slots, has everything before the run
as its prefix, and its slots already exist.  All rows of a pass go through the layers together, and the attention
backend writes the KV of all rows before any row attends.  Recomputed tokens therefore get the same KV as in a full
prefill.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from hive.server.kv_segments.plan import Run, passes
from sglang_patches.forward.decode_rows import DecodeRows, to_device
from sglang_patches.requests.kv_state import KvState, Lease

if TYPE_CHECKING:
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner

BACKENDS = ("torch_native", "triton", "flashinfer")
"""Attention backends that write KV before they read it, and read it through the slot table; flashinfer does so if its
prefill is paged.
"""

CHECK_LAYER = 1
"""The layer at which CacheBlend measures deviations.  Keys and values of layer 0 depend only on the token and its
position, so up to this layer the placed KV can be read as it is, and nothing must be written.
"""

PADDING_SLOT = 0
"""The slot that SGLang reserves for padding: it is written but never read."""


class VirtualRows:
    """Virtual rows of the requests in one extend batch."""

    def __init__(
        self,
        runner: ModelRunner,
        batch: ForwardBatch,
        states: Sequence[KvState | None],
        forward: Callable[[ForwardBatch], Any],
        decode_rows: DecodeRows,
    ) -> None:
        """``states`` are those of the batch's requests, ``forward`` is the engine's own forward pass."""
        self._runner = runner
        self._decode_rows = decode_rows
        self._batch = batch
        self._states = states
        self._forward = forward
        self._table = runner.req_to_token_pool.req_to_token
        args = runner.server_args
        self._max_tokens = args.chunked_prefill_size or 0
        if self._max_tokens < 1:
            self._max_tokens = args.max_prefill_tokens
        # Attention backends allocate buffers for at most this many rows.
        self._max_rows = runner.max_running_requests

    @staticmethod
    def of(row: int, run: Run) -> Run:
        """Return a run, assigned to a row of the batch."""
        return dataclasses.replace(run, row=row)

    def compute(self, runs: Sequence[Run]) -> Any:
        """Compute runs (in ascending order per request) into the slots in their requests' rows.

        Returns:
            The output of the batch's own rows, which run together with the last runs if possible.
        """
        parts = passes(runs, self._max_rows, self._max_tokens)
        last = parts.pop() if parts and self._fits(parts[-1]) else []
        for part in parts:
            self._pass(part, [True] * len(part))
        if not all(self._states):
            # Other requests must get the same results as without virtual rows.
            return self._forward(self._batch)
        rows = self._joined(self._batch_of(last, [True] * len(last))) if last else self._batch
        output = (
            self._decode_rows.run(rows, self._forward)
            if self._decode_rows.fits(rows)
            else self._through(rows)
        )
        if last:
            logits = output.logits_output
            logits.next_token_logits = logits.next_token_logits[len(last) :]
        return output

    def _fits(self, part: Sequence[Run]) -> bool:
        """Whether the batch's own rows can run together with virtual rows.

        They cannot if the batch returns something for each token, has images or requests without segments, or is not
        a plain extend.
        """
        from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardMode

        batch = self._batch
        return (
            all(self._states)
            and batch.forward_mode == ForwardMode.EXTEND
            and not batch.return_logprob
            and not batch.contains_mm_inputs()
            and batch.capture_hidden_mode in (None, CaptureHiddenMode.NULL)
            and len(part) + batch.batch_size <= self._max_rows
            and sum(map(len, part)) + len(batch.input_ids) <= self._max_tokens
        )

    def _joined(self, rows: ForwardBatch) -> ForwardBatch:
        """Append the batch's own rows to virtual rows."""
        batch = self._batch
        lengths = [*rows.extend_seq_lens_cpu, *batch.extend_seq_lens_cpu]
        both = {
            name: torch.cat([getattr(rows, name), getattr(batch, name).to(getattr(rows, name).dtype)])
            for name in (
                *("input_ids", "req_pool_indices", "seq_lens", "seq_lens_cpu", "orig_seq_lens"),
                *("out_cache_loc", "positions", "extend_seq_lens", "extend_prefix_lens"),
            )
        }
        starts = torch.tensor([0, *np.cumsum(lengths)[:-1].tolist()], dtype=torch.int32)
        return dataclasses.replace(
            rows,
            **both,
            batch_size=rows.batch_size + batch.batch_size,
            seq_lens_sum=rows.seq_lens_sum + int(batch.seq_lens_cpu.sum()),
            extend_num_tokens=sum(lengths),
            extend_start_loc=to_device(starts, rows.extend_seq_lens.device),
            extend_prefix_lens_cpu=[*rows.extend_prefix_lens_cpu, *batch.extend_prefix_lens_cpu],
            extend_seq_lens_cpu=lengths,
            extend_logprob_start_lens_cpu=lengths,
            num_token_non_padded_cpu=sum(lengths),
            lora_ids=[*rows.lora_ids, *batch.lora_ids],
            rids=[*rows.rids, *batch.rids],
        )

    def take(self, row: int, chosen: Sequence[int], slots: torch.Tensor) -> None:
        """Replace the slots of tokens that are selected for recomputation by slots of the request's own."""
        request = self._batch.req_pool_indices[row]
        at = to_device(torch.tensor(chosen, dtype=torch.int64), self._table.device)
        self._table[request, at] = slots[: len(chosen)].to(self._table.dtype)

    def deviation(self, row: int, lease: Lease) -> NDArray[np.float32]:
        """Return the deviation of placed values at the check layer: squared distances, float32 [placed tokens]."""
        # The rest of the context is computed up to this layer, too, and written, because it is not stored.
        runs = [*lease.runs]
        runs += [Run(p.start, p.end, p.position) for p in lease.pieces if p.source is not None]
        runs.sort(key=lambda run: run.start)
        found = []
        for part in passes([self.of(row, run) for run in runs], self._max_rows, self._max_tokens):
            # A cut of a run begins after the run's first token, but within the run.
            written = [not any(run.start <= cut.start < run.end for run in lease.placed) for cut in part]
            fresh = self._values(part, written)
            at = 0
            for cut, computed in zip(part, written, strict=True):
                if not computed:
                    slots = self._table[self._batch.req_pool_indices[row], cut.start : cut.end].long()
                    kept = self._runner.token_to_kv_pool.get_value_buffer(CHECK_LAYER)[slots]
                    distance = fresh[at : at + len(cut)].reshape(kept.shape).float() - kept.float()
                    found.append(distance.square().sum((1, 2)))
                at += len(cut)
        deviations: NDArray[np.float32] = torch.cat(found).float().cpu().numpy()
        return deviations

    def _values(self, part: Sequence[Run], written: Sequence[bool]) -> torch.Tensor:
        """Return the values at the check layer in this context, [tokens, ...]; the pass stops there."""
        caught: list[torch.Tensor] = []

        def catch(_attention: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            caught.append(args[2] if len(args) > 2 else kwargs["v"])
            raise _ValuesCaptured

        handle = attention_layer(self._runner.model, CHECK_LAYER).register_forward_pre_hook(
            catch, with_kwargs=True
        )
        try:
            with contextlib.suppress(_ValuesCaptured), _eager(self._runner):
                self._pass(part, written)
        finally:
            handle.remove()
        return caught[0]

    def _pass(self, part: Sequence[Run], written: Sequence[bool]) -> None:
        """Run one forward pass over virtual rows; the KV of rows that are not ``written`` is discarded."""
        try:
            self._through(self._batch_of(part, written))
        finally:
            if self._runner.server_args.enable_lora:
                self._runner.lora_manager.prepare_lora_batch(self._batch)

    def _through(self, rows: ForwardBatch) -> Any:
        """Run the forward pass of virtual rows, of the batch's own rows, or of both.

        After a long prefix, one kernel that reads everything from the pool is faster than two kernels for the parts
        and a third that merges them.
        """
        with paged(self._runner.attn_backend):
            if rows is not self._batch and self._runner.server_args.enable_lora:
                self._runner.lora_manager.prepare_lora_batch(rows)
            return self._forward(rows)

    def _batch_of(self, part: Sequence[Run], written: Sequence[bool]) -> ForwardBatch:
        from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode

        batch, device = self._batch, self._batch.input_ids.device
        lengths, ends = [len(run) for run in part], [run.end for run in part]
        prefixes = [run.start for run in part]
        indices, positions, tokens, run_of_token = [], [], [], []
        for number, run in enumerate(part):
            state = self._states[run.row]
            assert state is not None
            indices.append(torch.arange(run.start, run.end))
            positions.append(torch.arange(run.position, run.position + len(run)))
            tokens.append(torch.tensor(state.tokens[run.start : run.end], dtype=batch.input_ids.dtype))
            run_of_token.append(torch.full((len(run),), number))
        of_token = to_device(torch.cat(run_of_token), device)
        requests = batch.req_pool_indices[to_device(torch.tensor([run.row for run in part]), device)]
        slots = self._table[requests[of_token], to_device(torch.cat(indices), device)]
        slots = slots.to(batch.out_cache_loc.dtype)
        if not all(written):
            slots = torch.where(to_device(torch.tensor(written), device)[of_token], slots, PADDING_SLOT)
        seq_lens_cpu = torch.tensor(ends, dtype=torch.int64)

        def int32(numbers: Sequence[int]) -> torch.Tensor:
            return to_device(torch.tensor(numbers, dtype=torch.int32), device)

        return dataclasses.replace(
            batch,
            batch_size=len(part),
            input_ids=to_device(torch.cat(tokens), device),
            req_pool_indices=requests,
            seq_lens=to_device(seq_lens_cpu, device),
            seq_lens_cpu=seq_lens_cpu,
            seq_lens_sum=sum(ends),
            orig_seq_lens=int32(ends),
            out_cache_loc=slots,
            positions=to_device(torch.cat(positions).to(batch.positions.dtype), device),
            extend_num_tokens=sum(lengths),
            extend_seq_lens=int32(lengths),
            extend_prefix_lens=int32(prefixes),
            extend_start_loc=int32([0, *np.cumsum(lengths)[:-1].tolist()]),
            extend_prefix_lens_cpu=prefixes,
            extend_seq_lens_cpu=lengths,
            extend_logprob_start_lens_cpu=lengths,
            extend_input_logprob_token_ids_gpu=None,
            num_token_non_padded_cpu=sum(lengths),
            return_logprob=False,
            top_logprobs_nums=None,
            token_ids_logprobs=None,
            capture_hidden_mode=CaptureHiddenMode.NULL,
            lora_ids=[batch.lora_ids[run.row] for run in part],
            rids=[batch.rids[run.row] for run in part],
            mm_inputs=None,
        )


@functools.cache
def attention_layer(model: torch.nn.Module, layer: int) -> torch.nn.Module:
    """Return the attention module of a layer.

    Raises:
        LookupError: if the model has no such layer.
    """
    from sglang.srt.layers.radix_attention import RadixAttention

    layers: list[torch.nn.Module] = [m for m in model.modules() if isinstance(m, RadixAttention)]
    for module in layers:
        if module.layer_id == layer:
            return module
    raise LookupError(f"the model has no attention in layer {layer}")


class _ValuesCaptured(Exception):
    """Stops a forward pass when the values have been captured."""


@contextlib.contextmanager
def _eager(runner: ModelRunner) -> Iterator[None]:
    """Disable prefill graphs inside the context; module hooks do not run in graphs."""
    graphs = runner.prefill_cuda_graph_runner
    runner.prefill_cuda_graph_runner = None
    try:
        yield
    finally:
        runner.prefill_cuda_graph_runner = graphs


@contextlib.contextmanager
def paged(backend: Any) -> Iterator[None]:
    """Write KV before reading it, and read all of it from the pool, inside the context.

    FlashInfer's other prefill reads a row's own KV from its input; the other backends always work this way.
    """
    if not hasattr(backend, "use_paged"):
        yield
        return
    paged, backend.use_paged = backend.use_paged, True
    try:
        yield
    finally:
        backend.use_paged = paged
