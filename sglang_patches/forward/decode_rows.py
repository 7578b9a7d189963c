"""An extend batch of few tokens as a decode batch: each token is a row of its own.

A layer writes the KV of all rows before any of them attends, and a row attends to as many slots of its request as its
sequence is long.  So rows of one request, each a token longer than the one before, compute what an extend of these
tokens would.  What is won: a decode step is one CUDA graph, while an extend launches the attention of every layer by
itself, which takes the CPU longer than the GPU has to do for a few tokens.
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
"""What ``--hive-decode-rows`` says."""


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """Which batches go through the model in this way, and the way itself."""

    most_rows: int
    """In one batch; 0: none goes."""
    most_read: int
    """Tokens whose KV the rows of one batch read, each by itself."""
    prepare_adapters: Callable[[ForwardBatch], None] | None = None
    """Tells the LoRA layers which row has which adapter; None on a server without adapters."""

    @classmethod
    def of(cls, runner: ModelRunner, mode: Mode) -> DecodeRows:
        """What a model runner allows; under ``auto`` nothing where it has no graphs for decode steps.

        Nothing goes where the kernels that compute a request may not depend on who else is in its batch, where there
        are graphs for some batch sizes only, and where a step is more than a pass over one pool of keys and values.
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
        # A step of a dense model reads all weights whatever its rows are. Rows of one request share a context, and each
        # reads it by itself, where an extend reads it once: no more of that than doubles what is read.
        return cls(
            # Without graphs, what the buffers of a decode step hold.
            graphs.max_bs if has_graphs else runner.max_running_requests,
            sum(part.nbytes for part in runner.model.parameters()) // kv,
            manager and manager.prepare_lora_batch,
        )

    def have_room(self, prefixes: Sequence[int], lengths: Sequence[int]) -> bool:
        """Whether extends by ``lengths`` tokens behind ``prefixes`` are few enough rows, which read little enough."""
        read = sum(
            length * prefix + length * (length + 1) // 2
            for prefix, length in zip(prefixes, lengths, strict=True)
        )
        return sum(lengths) <= self.most_rows and read <= self.most_read

    def fit(self, batch: ForwardBatch) -> bool:
        """Whether an extend batch is small enough, and has nothing that a graph was not captured for."""
        from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardMode

        return (
            self.most_rows > 0
            and batch.forward_mode in (ForwardMode.EXTEND, ForwardMode.MIXED)
            and not batch.return_logprob
            and batch.capture_hidden_mode in (None, CaptureHiddenMode.NULL)
            and batch.input_embeds is None
            and batch.replace_embeds is None
            and not batch.contains_mm_inputs()
            and self.have_room(batch.extend_prefix_lens_cpu, batch.extend_seq_lens_cpu)
        )

    def run(self, batch: ForwardBatch, forward: Callable[[ForwardBatch], Any]) -> Any:
        """The forward pass of an extend batch; the logits are those behind the last token of each request."""
        # Before the step, and nothing is read back: a copy from or to the host would wait for it to end, and the
        # scheduler with it.
        ends = batch.extend_seq_lens.cumsum(0) - 1
        rows = as_decode(batch)
        if self.prepare_adapters is not None:
            # The engine has prepared them for the extend.
            self.prepare_adapters(rows)
        output = forward(rows)
        logits = output.logits_output
        logits.next_token_logits = logits.next_token_logits[ends]
        return output


def as_decode(batch: ForwardBatch) -> ForwardBatch:
    """The decode batch with a row for each token of an extend batch, in their order."""
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    lengths, device = _lengths(batch), batch.input_ids.device
    whose = [row for row, length in enumerate(batch.extend_seq_lens_cpu) for _ in range(length)]
    seq_lens = to_device(lengths, device)
    return dataclasses.replace(
        batch,
        forward_mode=ForwardMode.DECODE,
        batch_size=len(lengths),
        req_pool_indices=batch.req_pool_indices[to_device(torch.tensor(whose), device)],
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
        lora_ids=[batch.lora_ids[row] for row in whose],
        rids=[batch.rids[row] for row in whose],
        num_token_non_padded_cpu=len(lengths),
    )


def _lengths(batch: ForwardBatch) -> torch.Tensor:
    """Of the sequence that each token of an extend batch ends, int64 [tokens], on the host."""
    return torch.cat(
        [
            torch.arange(prefix + 1, prefix + length + 1)
            for prefix, length in zip(batch.extend_prefix_lens_cpu, batch.extend_seq_lens_cpu, strict=True)
        ]
    )


def to_device(numbers: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy of a tensor on the host, for which nobody waits: a plain one waits for all that the device has to do."""
    if device.type == "cuda":
        numbers = numbers.pin_memory()
    return numbers.to(device, non_blocking=True)
