"""The scheduler keeps the Logits Cache within what the host's memory has left (``--hive-min-free-host-bytes``).

Looked at by the number of loops, not by the clock, and agreed upon among the ranks that must keep the same rows: these
run the same loops, so their collectives come in the same order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from hive.server.host_memory import available_bytes, budget, give_back, headroom
from hive.server.logits_cache.cache import LogitsCache

if TYPE_CHECKING:
    from sglang.srt.managers.scheduler import Scheduler

logger = logging.getLogger(__name__)

LOOPS = 64
"""Loops between two looks: less than half a second on a GPU, some three on a CPU.  A look takes 0.3 ms."""

IDLE_LOOPS = 16
"""What a loop counts for in which the scheduler sleeps, for a second at the most."""

WORTH_TRIMMING = 2**20
"""Bytes evicted that are worth telling the allocator."""


class CacheMemory:
    """One scheduler's watch over host memory."""

    def __init__(
        self,
        cache: LogitsCache,
        least_free: int,
        agree: Callable[[int], int],
        read: Callable[[], int | None] = available_bytes,
    ) -> None:
        """``agree`` makes of one rank's number the smallest of all ranks."""
        self._cache = cache
        self._least_free = least_free
        self._agree = agree
        self._read = read
        self._loops = 0
        self._short = False

    @classmethod
    def of(cls, scheduler: Scheduler, cache: LogitsCache | None, least_free: int) -> CacheMemory | None:
        """The watch of a scheduler; None where there is nothing to watch, or nobody to agree with.

        Stages of a pipeline, and ranks that share a context, run loops of their own.
        """
        args = scheduler.server_args
        if cache is None or not least_free or args.pp_size > 1 or scheduler.attn_cp_group.world_size > 1:
            return None
        group = scheduler.dp_tp_group

        def agree(number: int) -> int:
            if group.world_size == 1:
                return number
            least = torch.tensor(number, dtype=torch.int64)
            torch.distributed.all_reduce(least, op=torch.distributed.ReduceOp.MIN, group=group.cpu_group)
            return int(least)

        return cls(cache, least_free, agree)

    def step(self, loops: int = 1) -> None:
        """Count loops, and every so often fit the cache to what is free."""
        self._loops += loops
        if self._loops < LOOPS:
            return
        self._loops = 0
        left = self._agree(headroom(self._least_free, self._read))
        gone = self._cache.limit(budget(self._cache.capacity_bytes, self._cache.nbytes, left))
        if gone >= WORTH_TRIMMING:
            give_back()
        short = left < 0
        if short and not self._short:
            logger.warning(
                "Host memory is short: %d bytes below --hive-min-free-host-bytes. The Logits Cache gave up %d bytes "
                "and has %d.",
                -left,
                gone,
                self._cache.nbytes,
            )
        self._short = short
