"""Hive's sampler, registered with ``sglang.srt.layers.sampler`` as the backend ``hive``.

It is seeded per request without ``--enable-deterministic-inference`` and independent of the rest of the batch, and
uses the same inverse CDF as replay (:mod:`hive.server.logits_cache.sampling`).  It leaves the heads of the
distributions on ``logits_output`` for recording, so each distribution is sorted only once.  Heads are taken after
penalties, biases and the grammar's mask; everything besides the tokens that a state's row depends on is therefore
part of the cache's namespace (see :mod:`sglang_patches.requests.request_state`).

On a CPU, :func:`~hive.server.logits_cache.sampling.draw_live` draws from the top-k of each row.  On a GPU,
:func:`~hive.server.logits_cache.device_sampling.draw_rows` does the same for whole batches, and never waits for the
device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from sglang.srt.layers import sampler as upstream
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

from hive.server.flags.server_args import HiveServerArgs
from hive.server.logits_cache.device_sampling import DrawnRows, Truncations, draw_rows, rules_of
from hive.server.logits_cache.distinct import Constraint
from hive.server.logits_cache.head import Head
from hive.server.logits_cache.packing import pack, pack_rows
from hive.server.logits_cache.sampling import SamplingRule, draw_live, probability, uniform
from sglang_patches.contract.releases import current

BACKEND = "hive"
ROWS_ATTRIBUTE = "hive_rows"
"""Attribute of ``LogitsProcessorOutput`` with the batch's :class:`SampledRows`."""

CONSTRAINTS_ATTRIBUTE = "hive_constraints"
"""Attribute of ``SamplingBatchInfo``: see :func:`constraints_of`."""


def register() -> None:
    """Make ``--sampling-backend hive`` known to SGLang."""
    upstream.register_sampler_backend(BACKEND, HiveSampler)


class SampledRows(Protocol):
    """The distributions from which a batch's tokens were drawn, row by row."""

    def to_host(self, copy: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Replace every tensor by its copy, made with ``copy``."""

    def packed(self, index: int) -> bytes | None:
        """Return the head of a row in the format of :func:`~hive.server.logits_cache.packing.pack`; None if it cannot
        be replayed.
        """

    def probability(self, index: int) -> float:
        """Return the probability of the token drawn from a row, under its sampling rule."""


class DeviceRows:
    """Rows of the device sampler; two copies bring them to the host."""

    def __init__(self, drawn: DrawnRows) -> None:
        self._heads, self._scalars = drawn.heads, drawn.scalars
        self._on_host: tuple[NDArray[np.int32], NDArray[np.float64]] | None = None
        self._packed: list[bytes | None] | None = None

    def to_host(self, copy: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._heads, self._scalars = copy(self._heads), copy(self._scalars)

    def packed(self, index: int) -> bytes | None:
        if self._packed is None:
            heads, scalars = self._arrays()
            rows = [
                (int(size), int(support), temperature, normaliser)
                for size, support, temperature, normaliser, _ in scalars.tolist()
            ]
            self._packed = pack_rows(heads[:, 0], heads[:, 1].view(np.float32), rows)
        return self._packed[index]

    def probability(self, index: int) -> float:
        return float(self._arrays()[1][index, 4])

    def _arrays(self) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Return the rows on the host; waits for the device if they have not been copied."""
        if self._on_host is None:
            self._on_host = self._heads.cpu().numpy(), self._scalars.cpu().numpy()
        return self._on_host


class HostRows:
    """The heads from which the host drew, and their full rows."""

    def __init__(
        self, heads: list[Head], logits: torch.Tensor, rules: list[SamplingRule], min_probability: float
    ):
        self._heads, self._logits, self._rules = heads, logits, rules
        self._min_probability = min_probability
        self.tokens: list[int] = []

    def to_host(self, copy: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Do nothing: the rows are on the host."""

    def packed(self, index: int) -> bytes | None:
        head = self._heads[index]
        return pack(head.trimmed(self._min_probability)) if len(head.ids) else None

    def probability(self, index: int) -> float:
        row = _host_row(self._logits, index)
        return probability(self._heads[index], lambda: row, self._rules[index], self.tokens[index])


class HiveSampler(upstream.Sampler):  # type: ignore[misc]
    """Sampler backend; see the module."""

    def __init__(self) -> None:
        super().__init__()
        args = HiveServerArgs.from_environment()
        self._recording = args.logits_cache
        self._head_size = args.head_size
        self._min_probability = args.min_probability
        self._ranks = self.tp_sync_group.size()

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
        if self._recording:
            setattr(logits_output, ROWS_ATTRIBUTE, rows)

        if any(sampling_info.return_sampling_masks or []):
            greedy = sampling_info.is_all_greedy
            probabilities = None if greedy else torch.softmax(logits / sampling_info.temperatures, dim=-1)
            current().attach_sampling_masks(self, logits_output, probabilities, sampling_info, chosen)
        if return_logprob:
            # As in upstream, logprobs are those after temperature, unless configured otherwise.
            tempered = (
                logits if upstream.SGLANG_RETURN_ORIGINAL_LOGPROB else logits / sampling_info.temperatures
            )
            self.output_logprob_processor.compute_logprobs(
                torch.log_softmax(tempered, dim=-1), top_logprobs_nums, token_ids_logprobs, chosen.long()
            ).write_output_to(logits_output)
        if self._ranks > 1:
            self._sync_token_ids_across_tp(chosen, sampling_info)
        return chosen

    def _draw_on_host(
        self, logits: torch.Tensor, info: SamplingBatchInfo, positions: torch.Tensor
    ) -> tuple[torch.Tensor, SampledRows]:
        """Draw on the CPU: the head decides nearly every draw, and only the others read the whole row."""
        parameters = (tensor.tolist() for tensor in rules_of(info))
        rules = [SamplingRule(*rule) for rule in zip(*parameters, strict=True)]
        heads = top_heads(logits, info.temperatures.view(-1), self._head_size)
        rows = HostRows(heads, logits, rules, self._min_probability)
        seeds, places = info.sampling_seed.tolist(), positions.tolist()
        constraints = constraints_of(info)
        for i, (head, rule) in enumerate(zip(heads, rules, strict=True)):
            row = partial(_host_row, logits, i)
            constraint = constraints.get(i)
            if constraint is not None and constraint.only:
                (token,) = constraint.tokens
            else:
                remaining = dict.fromkeys(constraint.tokens, 0.0) if constraint is not None else None
                token = draw_live(head, row, rule, uniform(seeds[i], places[i]), remaining)
            rows.tokens.append(token)
        return torch.tensor(rows.tokens, dtype=torch.int32), rows

    def _draw_on_device(
        self, logits: torch.Tensor, info: SamplingBatchInfo, positions: torch.Tensor
    ) -> tuple[torch.Tensor, SampledRows]:
        """Draw on the GPU, without waiting for the device."""
        remaining = None
        if constraints := constraints_of(info):
            remaining = torch.ones(logits.shape, dtype=torch.float32)
            for i, constraint in constraints.items():
                if constraint.only:
                    remaining[i] = 0.0
                remaining[i, list(constraint.tokens)] = float(constraint.only)
            remaining = remaining.to(logits.device, non_blocking=True)
        drawn = draw_rows(
            logits,
            *rules_of(info),
            info.sampling_seed,
            positions,
            self._head_size,
            self._min_probability,
            Truncations.of(info),
            remaining,
        )
        return drawn.tokens, DeviceRows(drawn)


def constraints_of(info: SamplingBatchInfo) -> Mapping[int, Constraint]:
    """Return and remove which tokens distinct samples may draw, by row of the batch; valid for one draw."""
    constraints: Mapping[int, Constraint] = getattr(info, CONSTRAINTS_ATTRIBUTE, {})
    if constraints:
        delattr(info, CONSTRAINTS_ATTRIBUTE)
    return constraints


def top_heads(logits: torch.Tensor, temperatures: torch.Tensor, size: int) -> list[Head]:
    """Return the ``size`` most likely tokens of each row of ``logits`` (float, ``[batch, vocabulary]``, on the CPU)."""
    size = min(size, logits.shape[1])
    values, ids = logits.topk(size, dim=-1, sorted=False)
    if not bool(torch.isfinite(values.amax(dim=-1)).all()):
        # The model overflowed (NaN sorts first), or the grammar allows no token. One bad row must not stop the
        # others.
        torch.nan_to_num_(logits, nan=-torch.inf, posinf=torch.finfo(logits.dtype).max, neginf=-torch.inf)
        logits[logits.amax(dim=-1) == -torch.inf] = 0.0
        values, ids = logits.topk(size, dim=-1, sorted=False)
    first, heat = values.amax(dim=-1, keepdim=True), temperatures[:, None]
    weights = torch.exp((logits - first) / heat)
    # Sum the head's weights in float64, as draws do; float32 is precise enough for the tail.
    tails = weights.sum(dim=-1, dtype=torch.float64) - weights.gather(1, ids).sum(dim=-1, dtype=torch.float64)
    heads = torch.exp((values.double() - first.double()) / heat.double()).sum(dim=-1)
    columns = zip(
        ids.numpy(),
        values.float().numpy(),
        (logits > -torch.inf).sum(dim=-1).tolist(),
        temperatures.tolist(),
        (heads + tails.clamp(min=0.0)).tolist(),
        strict=True,
    )
    return [
        Head.select(row_ids, row, support, {temperature: normaliser})
        for row_ids, row, support, temperature, normaliser in columns
    ]


def _host_row(logits: torch.Tensor, index: int) -> NDArray[np.float32]:
    return logits[index].float().numpy()
