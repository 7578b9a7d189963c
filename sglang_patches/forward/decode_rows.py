"""Runs an extend batch of few tokens as a decode batch in which each token is a row.

A layer writes the KV of all rows before any row attends, and a row attends to as many slots of its request as its
sequence is long.  Rows of one request, each one token longer than the one before, therefore compute what an extend of
these tokens would.  The benefit: a decode step is one CUDA graph, while an extend launches the attention of every
layer separately, which takes the CPU longer than the GPU needs for a few tokens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

if TYPE_CHECKING:
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner

Mode = Literal["auto", "on", "off"]
"""Values of ``--hive-decode-rows``."""


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """Decides which batches run as decode rows, and runs them."""

    max_rows: int
    """Maximum rows in one batch; 0 disables decode rows."""
    max_read_tokens: int
    """Maximum number of tokens whose KV the rows of one batch read, counted per row."""
    prepare_adapters: Callable[[ForwardBatch], None] | None = None
    """Sets the adapter of each row in the LoRA layers; None on a server without adapters."""
    pool: Any = None
    """The engine's pool of keys and values, which knows about copies from the host."""

    @classmethod
    def of(cls, runner: ModelRunner, mode: Mode) -> DecodeRows:
        """Return the limits of a model runner; under ``auto``, decode rows are disabled without decode graphs.

        Decode rows are also disabled if the kernels used for a request must not depend on the rest of its batch, if
        graphs exist only for some batch sizes, and if a step is more than one pass over one pool of keys and values.
        """
        from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
        from sglang.srt.model_executor.runner import DecodeCudaGraphRunner

        graphs, args, pool = runner.decode_cuda_graph_runner, runner.server_args, runner.token_to_kv_pool
        manager = runner.lora_manager if args.enable_lora else None
        has_graphs = isinstance(graphs, DecodeCudaGraphRunner)
        if (
            mode == "off"
            or (mode == "auto" and not has_graphs)
            or not isinstance(pool, MHATokenToKVPool)
            or not runner.is_generation
            or not runner.spec_algorithm.is_none()
            or runner.model_config.is_encoder_decoder
            or args.enable_deterministic_inference
            or args.disable_cuda_graph_padding
            or args.enable_dp_attention
            or args.pp_size > 1
            or (manager is not None and manager.lora_backend.is_moe_lora)
        ):
            return cls(0, 0)
        kv = sum(layer[0].nbytes for layer in (*pool.k_buffer, *pool.v_buffer))
        # A decode step of a dense model reads all weights, whatever its rows are. Rows of one request share a context
        # but each reads it separately, where an extend reads it once. The limit lets these reads at most double the
        # step's.
        return cls(
            # Without graphs, the size of a decode step's buffers.
            graphs.max_bs if has_graphs else runner.max_running_requests,
            sum(part.nbytes for part in runner.model.parameters()) // kv,
            manager and manager.prepare_lora_batch,
            pool,
        )

    def lengths_fit(self, prefixes: Sequence[int], lengths: Sequence[int]) -> bool:
        """Whether extends by ``lengths`` tokens after ``prefixes`` stay within both limits."""
        read = sum(
            length * prefix + length * (length + 1) // 2
            for prefix, length in zip(prefixes, lengths, strict=True)
        )
        return sum(lengths) <= self.max_rows and read <= self.max_read_tokens

    def fits(self, batch: ForwardBatch) -> bool:
        """Whether an extend batch is small enough, and needs nothing that graphs were not captured for."""
        from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardMode

        return (
            self.max_rows > 0
            and batch.forward_mode in (ForwardMode.EXTEND, ForwardMode.MIXED)
            and not batch.return_logprob
            and batch.capture_hidden_mode in (None, CaptureHiddenMode.NULL)
            and batch.input_embeds is None
            and batch.replace_embeds is None
            and not batch.contains_mm_inputs()
            and self.lengths_fit(batch.extend_prefix_lens_cpu, batch.extend_seq_lens_cpu)
        )

    def run(self, batch: ForwardBatch, forward: Callable[[ForwardBatch], Any]) -> Any:
        """Run the forward pass of an extend batch; returns the logits of each request's last token."""
        # Computed before the step, on the device: a copy to or from the host would make the scheduler wait for the
        # step.
        ends = batch.extend_seq_lens.cumsum(0) - 1
        rows = as_decode(batch)
        copies = self.pool.layer_transfer_counter if self.pool is not None else None
        if copies is not None:
            # An extend waits for the KV of each layer that is loaded from the host; a graph of all layers does not.
            copies.wait_until(copies.num_layers - 1)
        if self.prepare_adapters is not None:
            # The engine has prepared the adapters for the extend.
            self.prepare_adapters(rows)
        output = forward(rows)
        logits = output.logits_output
        logits.next_token_logits = logits.next_token_logits[ends]
        return output


def as_decode(batch: ForwardBatch) -> ForwardBatch:
    """Return the decode batch with one row per token of an extend batch, in order."""
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    lengths, device = _lengths(batch), batch.input_ids.device
    row_of_token = [row for row, length in enumerate(batch.extend_seq_lens_cpu) for _ in range(length)]
    seq_lens = to_device(lengths, device)
    return dataclasses.replace(
        batch,
        forward_mode=ForwardMode.DECODE,
        batch_size=len(lengths),
        req_pool_indices=batch.req_pool_indices[to_device(torch.tensor(row_of_token), device)],
        seq_lens=seq_lens,
        seq_lens_cpu=lengths,
        seq_lens_sum=int(lengths.sum()),
        orig_seq_lens=seq_lens.to(torch.int32),
        extend_num_tokens=None,
        extend_seq_lens=None,
        extend_prefix_lens=None,
        extend_start_loc=None,
        extend_prefix_lens_cpu=None,
        extend_seq_lens_cpu=None,
        extend_logprob_start_lens_cpu=None,
        lora_ids=[batch.lora_ids[row] for row in row_of_token],
        rids=[batch.rids[row] for row in row_of_token],
        num_token_non_padded_cpu=len(lengths),
    )


def _lengths(batch: ForwardBatch) -> torch.Tensor:
    """Return the sequence length at each token of an extend batch, int64 [tokens], on the host."""
    return torch.cat(
        [
            torch.arange(prefix + 1, prefix + length + 1)
            for prefix, length in zip(batch.extend_prefix_lens_cpu, batch.extend_seq_lens_cpu, strict=True)
        ]
    )


def to_device(numbers: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a host tensor to the device asynchronously; a plain copy would wait for all pending work."""
    if device.type == "cuda":
        numbers = numbers.pin_memory()
    return numbers.to(device, non_blocking=True)
