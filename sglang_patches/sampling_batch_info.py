"""Hook on ``SamplingBatchInfo.from_schedule_batch``: every request has a seed.

SGLang builds the tensor of seeds only under ``--enable-deterministic-inference`` and ignores a request's seed
without a word otherwise.
"""

from __future__ import annotations

from typing import Any

import torch

from sglang_patches.sampler import BACKEND
from sglang_patches.scheduler import seed_of


def after_from_schedule_batch(info: Any, _cls: type, batch: Any, *_args: Any, **_kwargs: Any) -> Any:
    """Fill ``sampling_seed`` (int64, ``[batch]``)."""
    from sglang.srt.runtime_context import get_exec

    if info.sampling_seed is None and get_exec().kernel.sampling_backend == BACKEND:
        seeds = torch.tensor([seed_of(req) for req in batch.reqs], dtype=torch.int64)
        info.sampling_seed = seeds.to(info.device, non_blocking=True)
    return info
