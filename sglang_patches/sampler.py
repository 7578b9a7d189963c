"""Hive's sampler, registered with ``sglang.srt.layers.sampler`` as the backend ``hive``.

Seeded per request without ``--enable-deterministic-inference``, independent of the rest of the batch, and the same
inverse CDF that replay uses (:mod:`hive.logits_cache.sampling`).  The heads of the distributions are left on
``logits_output`` for recording, so a distribution is ordered once for both.  They are taken after penalties, biases
and the grammar's mask: what a state's row depends on beside its tokens is therefore part of the cache's namespace
(see :mod:`sglang_patches.scheduler`).

On a CPU the draw is :func:`~hive.logits_cache.sampling.draw_live` itself, over the top-k of each row.  On a GPU it is
:func:`~hive.logits_cache.device_sampling.draw_rows`, its twin over fully sorted rows, which never waits for the
device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from sglang.srt.layers import sampler as upstream
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

from hive.logits_cache.device_sampling import draw_rows
from hive.logits_cache.head import Head
from hive.logits_cache.sampling import SamplingRule, draw_live, uniform
from hive.server_args import HiveServerArgs

BACKEND = "hive"
ROWS_ATTRIBUTE = "hive_rows"
"""Attribute of ``LogitsProcessorOutput`` that carries the batch's :class:`SampledRows`."""


def register() -> None:
    """Make ``--sampling-backend hive`` known to SGLang."""
    upstream.register_sampler_backend(BACKEND, HiveSampler)


@dataclass(slots=True)
class SampledRows:
    """The most likely tokens of each row of a batch, on the device that drew from them.

    ``ids`` (int64) and ``logits`` (the model's dtype) are ``[batch, k]``; ``supports`` (int64), ``normalisers``
    (float64, at ``temperatures``, relative to the first logit) and ``temperatures`` (float32) are ``[batch]``.
    """

    ids: torch.Tensor
    logits: torch.Tensor
    supports: torch.Tensor
    normalisers: torch.Tensor
    temperatures: torch.Tensor
    _heads: list[Head] | None = None

    def move(self, copy: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Replace every tensor by its copy elsewhere."""
        for name in ("ids", "logits", "supports", "normalisers", "temperatures"):
            setattr(self, name, copy(getattr(self, name)))

    def heads(self) -> list[Head]:
        """One head per row; waits for the device if the rows are still there."""
        if self._heads is None:
            self._heads = self._select()
        return self._heads

    def _select(self) -> list[Head]:
        ids, logits = self.ids.cpu().numpy(), self.logits.float().cpu().numpy()
        scalars = zip(
            self.supports.tolist(), self.temperatures.tolist(), self.normalisers.tolist(), strict=True
        )
        return [
            Head.select(ids[i], logits[i], support, {temperature: normaliser})
            for i, (support, temperature, normaliser) in enumerate(scalars)
        ]


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

        Returns int32 ids ``[batch]`` on the logits' device and leaves :class:`SampledRows` on ``logits_output``.
        """
        logits = self._preprocess_logits(logits_output.next_token_logits, sampling_info)
        draw = self._draw_on_device if logits.is_cuda else self._draw_on_host
        chosen, rows = draw(logits, sampling_info, positions)
        setattr(logits_output, ROWS_ATTRIBUTE, rows)

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

    def _draw_on_host(
        self, logits: torch.Tensor, info: SamplingBatchInfo, positions: torch.Tensor
    ) -> tuple[torch.Tensor, SampledRows]:
        """The head of each row decides nearly every draw; the few others look at the whole row."""
        rows = top_rows(logits, info.temperatures.view(-1), self._head_size)
        rules = zip(
            info.temperatures.view(-1).tolist(),
            info.top_ks.tolist(),
            info.top_ps.tolist(),
            info.min_ps.tolist(),
            strict=True,
        )
        seeds, places = info.sampling_seed.tolist(), positions.tolist()
        tokens = [
            draw_live(head, partial(_host_row, logits, i), SamplingRule(*rule), uniform(seeds[i], places[i]))
            for i, (head, rule) in enumerate(zip(rows.heads(), rules, strict=True))
        ]
        return torch.tensor(tokens, dtype=torch.int32), rows

    def _draw_on_device(
        self, logits: torch.Tensor, info: SamplingBatchInfo, positions: torch.Tensor
    ) -> tuple[torch.Tensor, SampledRows]:
        """Everything stays on the GPU, and nothing there is waited for."""
        drawn = draw_rows(
            logits,
            info.temperatures.view(-1),
            info.top_ks,
            info.top_ps,
            info.min_ps,
            info.sampling_seed,
            positions,
            self._head_size,
        )
        rows = SampledRows(
            drawn.ids, drawn.logits, drawn.supports, drawn.normalisers, info.temperatures.view(-1)
        )
        return drawn.tokens, rows

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


def top_rows(logits: torch.Tensor, temperatures: torch.Tensor, size: int) -> SampledRows:
    """Cut each row of ``logits`` (float, ``[batch, vocabulary]``, on the CPU) to its ``size`` most likely tokens."""
    size = min(size, logits.shape[1])
    values, ids = logits.topk(size, dim=-1)
    if not bool(torch.isfinite(values[:, 0]).all()):
        # Overflow in the model (NaN sorts first), or a grammar with no way on: one bad row must not stop the rest.
        torch.nan_to_num_(logits, nan=-torch.inf, posinf=torch.finfo(logits.dtype).max, neginf=-torch.inf)
        logits[logits.amax(dim=-1) == -torch.inf] = 0.0
        values, ids = logits.topk(size, dim=-1)
    weights = torch.exp((logits - values[:, :1]) / temperatures[:, None])
    supports = (logits > -torch.inf).sum(dim=-1)
    return SampledRows(ids, values, supports, weights.sum(dim=-1, dtype=torch.float64), temperatures)


def _host_row(logits: torch.Tensor, index: int) -> NDArray[np.float32]:
    return logits[index].float().numpy()
