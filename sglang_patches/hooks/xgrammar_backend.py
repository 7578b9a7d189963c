"""Hooks on ``sglang.srt.constrained.xgrammar_backend``: grammar-constrained decoding on a CPU.

Upstream pins the bitmask's memory, which needs an NVIDIA driver, and raises an error on every device that is not
CUDA-like.  xgrammar has a CPU kernel for the same bitmask; these replacements call it.
"""

from __future__ import annotations

import torch
import xgrammar


def allocate_token_bitmask(vocab_size: int, batch_size: int) -> torch.Tensor:
    """``_allocate_token_bitmask`` without pinned memory: int32 ``[batch, ceil(vocab / 32)]``, all ones."""
    shape = xgrammar.get_bitmask_shape(batch_size, vocab_size)
    return torch.full(shape, -1, dtype=xgrammar.bitmask_dtype)


def apply_vocab_mask(logits: torch.Tensor, vocab_mask: torch.Tensor) -> None:
    """``XGrammarGrammarBackend.apply_vocab_mask``: sets forbidden entries of ``[batch, vocab]`` to -inf."""
    xgrammar.apply_token_bitmask_inplace(logits, vocab_mask)


def apply_vocab_mask_of_grammar(_grammar: object, logits: torch.Tensor, vocab_mask: torch.Tensor) -> None:
    """``XGrammarGrammar.apply_vocab_mask``, the same as a method."""
    apply_vocab_mask(logits, vocab_mask)
