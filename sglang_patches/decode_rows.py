"""An extend batch of few tokens as a decode batch: each token is a row of its own.

A layer writes the KV of all rows before any of them attends, and a row attends to as many slots of its request as its
sequence is long.  So rows of one request, each a token longer than the one before, compute what an extend of these
tokens would.  What is won: a decode step is one CUDA graph, while an extend launches the attention of every layer by
itself, which takes the CPU longer than the GPU has to do for a few tokens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """Which batches go through the model in this way, and the way itself."""

    most_rows: int
    """In one batch; 0: none goes."""
    most_read: int
    """Tokens whose KV the rows of one batch read, each by itself."""

    @classmethod
    def of(cls, runner: ModelRunner) -> DecodeRows:
        """What the graphs of a model runner allow.

        With LoRA nothing, for adapters are prepared for batches as they come; nor where the kernels that compute a
        request may not depend on who else is in its batch, nor where there are graphs for some sizes only.
        """
        from sglang.srt.model_executor.runner import DecodeCudaGraphRunner

        graphs, args = runner.decode_cuda_graph_runner, runner.server_args
        if not isinstance(graphs, DecodeCudaGraphRunner):
            return cls(0, 0)
        if args.enable_lora or args.enable_deterministic_inference or args.disable_cuda_graph_padding:
            return cls(0, 0)
        pool = runner.token_to_kv_pool
        kv = sum(layer[0].nbytes for layer in (*pool.k_buffer, *pool.v_buffer))
        # A step of a dense model reads all weights whatever its rows are. Rows of one request share a context, and each
        # reads it by itself, where an extend reads it once: no more of that than doubles what is read.
        return cls(graphs.max_bs, sum(part.nbytes for part in runner.model.parameters()) // kv)

    def fit(self, batch: ForwardBatch) -> bool:
        """Whether an extend batch is small enough, and has nothing that a graph was not captured for."""
        from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardMode

        return (
            sum(batch.extend_seq_lens_cpu) <= self.most_rows
            and batch.forward_mode == ForwardMode.EXTEND
            and not batch.return_logprob
            and batch.capture_hidden_mode in (None, CaptureHiddenMode.NULL)
            and batch.input_embeds is None
            and batch.replace_embeds is None
            and not batch.contains_mm_inputs()
            and int(_lengths(batch).sum()) <= self.most_read
        )

    def run(self, batch: ForwardBatch, forward: Callable[[ForwardBatch], Any]) -> Any:
        """The forward pass of an extend batch; the logits are those behind the last token of each request."""
        # Before the step, and nothing is read back: a copy from or to the host would wait for it to end, and the
        # scheduler with it.
        ends = batch.extend_seq_lens.cumsum(0) - 1
        output = forward(as_decode(batch))
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
