"""Hive's sampler, registered with ``sglang.srt.layers.sampler`` as the backend ``hive``.

It draws with :func:`hive.logits_cache.sampling.draw_live`: seeded per request without
``--enable-deterministic-inference``, independent of the rest of the batch, and the very function that replay
uses.  The heads it selects to draw from are left on ``logits_output`` for recording, so a distribution is cut
once for both.  They are taken after penalties, biases and the grammar's mask: what a state's row depends on
beside its tokens is therefore part of the cache's namespace (see :mod:`sglang_patches.scheduler`).

The draw runs on the host.  On a GPU that costs one synchronisation per step, which the overlap scheduler
cannot hide.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from sglang.srt.layers import sampler as upstream
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

from hive.logits_cache.head import Head
from hive.logits_cache.sampling import SamplingRule, draw_live, uniform
from hive.server_args import HiveServerArgs

BACKEND = "hive"
HEADS_ATTRIBUTE = "hive_heads"
"""Attribute of ``LogitsProcessorOutput``: ``list[Head]``, one per row of the batch."""


def register() -> None:
    """Make ``--sampling-backend hive`` known to SGLang."""
    upstream.register_sampler_backend(BACKEND, HiveSampler)


class HiveSampler(upstream.Sampler):  # type: ignore[misc]
    """Sampler backend; see the module's text."""

    def __init__(self) -> None:
        super().__init__()
        self._head_size = HiveServerArgs.from_environment().logits_cache_head

    def forward(
        self,
        logits_output: LogitsProcessorOutput,
        sampling_info: SamplingBatchInfo,
        return_logprob: bool,
        top_logprobs_nums: list[int],
        token_ids_logprobs: list[list[int]],
        positions: torch.Tensor,
    ) -> torch.Tensor:
        """Draw one token per row of ``logits_output.next_token_logits`` (float, ``[batch, vocabulary]``).

        Returns int32 ids ``[batch]`` on the logits' device and leaves ``[batch]`` heads on ``logits_output``.
        """
        logits = self._preprocess_logits(logits_output.next_token_logits, sampling_info)
        heads = select_heads(logits, sampling_info.temperatures, self._head_size)
        setattr(logits_output, HEADS_ATTRIBUTE, heads)

        rules = zip(
            sampling_info.temperatures.flatten().tolist(),
            sampling_info.top_ks.tolist(),
            sampling_info.top_ps.tolist(),
            sampling_info.min_ps.tolist(),
            strict=True,
        )
        seeds, places = sampling_info.sampling_seed.tolist(), positions.tolist()
        tokens = [
            draw_live(head, partial(_host_row, logits, i), SamplingRule(*rule), uniform(seeds[i], places[i]))
            for i, (head, rule) in enumerate(zip(heads, rules, strict=True))
        ]
        chosen = torch.tensor(tokens, dtype=torch.int32, device=logits.device)

        if any(sampling_info.return_sampling_masks or []):
            self._attach_masks(logits_output, logits, sampling_info, chosen)
        if return_logprob:
            # Upstream's convention: logprobs are those of the tempered distribution, unless told otherwise.
            tempered = (
                logits if upstream.SGLANG_RETURN_ORIGINAL_LOGPROB else logits / sampling_info.temperatures
            )
            self.output_logprob_processor.compute_logprobs(
                torch.log_softmax(tempered, dim=-1), top_logprobs_nums, token_ids_logprobs, chosen.long()
            ).write_output_to(logits_output)
        self._sync_token_ids_across_tp(chosen, sampling_info)
        return chosen

    def _attach_masks(
        self,
        logits_output: LogitsProcessorOutput,
        logits: torch.Tensor,
        sampling_info: SamplingBatchInfo,
        chosen: torch.Tensor,
    ) -> None:
        """``return_sampling_mask``, as upstream computes it."""
        if sampling_info.is_all_greedy:
            self._attach_greedy_sampling_mask_to_output(logits_output, sampling_info, chosen)
            return
        probs = torch.softmax(logits / sampling_info.temperatures, dim=-1)
        data = self._compute_sampling_mask_from_probs(probs, sampling_info)
        self._attach_sampling_mask_to_output(logits_output, sampling_info, chosen.long(), data)


def select_heads(logits: torch.Tensor, temperatures: torch.Tensor, size: int) -> list[Head]:
    """Cut each row of ``logits`` (float, ``[batch, vocabulary]``) to its ``size`` most likely tokens.

    ``temperatures`` is float32 ``[batch, 1]``; each head knows its row's normaliser at its temperature.
    """
    values, ids = logits.topk(min(size, logits.shape[1]), dim=-1)
    if not bool(torch.isfinite(values[:, 0]).all()):
        # Overflow in the model (NaN sorts first), or a grammar with no way on: one bad row must not stop the rest.
        torch.nan_to_num_(logits, nan=-torch.inf, posinf=torch.finfo(logits.dtype).max, neginf=-torch.inf)
        logits[logits.amax(dim=-1) == -torch.inf] = 0.0
        values, ids = logits.topk(min(size, logits.shape[1]), dim=-1)
    weights = torch.exp((logits - values[:, :1]) / temperatures)
    normalisers = weights.sum(dim=-1, dtype=torch.float64).tolist()
    supports = (logits > -torch.inf).sum(dim=-1).tolist()
    host_values, host_ids = values.float().cpu().numpy(), ids.cpu().numpy()
    return [
        Head.select(host_ids[i], host_values[i], supports[i], {temperature: normalisers[i]})
        for i, temperature in enumerate(temperatures.flatten().tolist())
    ]


def _host_row(logits: torch.Tensor, index: int) -> NDArray[np.float32]:
    return logits[index].float().cpu().numpy()
