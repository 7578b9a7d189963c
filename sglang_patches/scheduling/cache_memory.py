"""Limits the Logits Cache to the host's free memory (``--hive-min-free-host-bytes``).

Memory is checked after a number of loops, not by the clock, and ranks that must keep the same rows agree on the
result. These ranks run the same loops, so their collectives stay in order.
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
"""Loops between two checks: less than half a second on a GPU, about three on a CPU. A check takes 0.3 ms."""

IDLE_LOOPS = 16
"""Weight of a loop in which the scheduler sleeps, for at most a second."""

WORTH_TRIMMING = 2**20
"""Evicted bytes above which freed memory is returned to the operating system."""


class CacheMemory:
    """Watches host memory for one scheduler."""

    def __init__(
        self,
        cache: LogitsCache,
        least_free: int,
        agree: Callable[[int], int],
        read: Callable[[], int | None] = available_bytes,
    ) -> None:
        """``agree`` returns the minimum of a number over all ranks."""
        self._cache = cache
        self._least_free = least_free
        self._agree = agree
        self._read = read
        self._loops = 0
        self._short = False

    @classmethod
    def of(cls, scheduler: Scheduler, cache: LogitsCache | None, least_free: int) -> CacheMemory | None:
        """Return the watch of a scheduler; None if there is no cache or no limit, or if ranks cannot agree.

        Pipeline stages and context-parallel ranks run loops of their own, so they cannot agree.
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
        """Count loops; every :data:`LOOPS` loops, resize the cache to the free memory."""
        self._loops += loops
        if self._loops < LOOPS:
            return
        self._loops = 0
        left = self._agree(headroom(self._least_free, self._read))
        evicted = self._cache.limit(budget(self._cache.capacity_bytes, self._cache.nbytes, left))
        if evicted >= WORTH_TRIMMING:
            give_back()
        short = left < 0
        if short and not self._short:
            logger.warning(
                "Hive: free host memory is %d bytes below --hive-min-free-host-bytes. The Logits Cache evicted %d "
                "bytes and now uses %d.",
                -left,
                evicted,
                self._cache.nbytes,
            )
        self._short = short
