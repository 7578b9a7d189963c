"""How the installed SGLang keeps what a request holds of the KV, and how requests enter its trees and leave them.

For :mod:`tests.sglang_patches.kv_pool`, which does what the scheduler does.
"""

from __future__ import annotations

from array import array
from typing import Any

import torch

from sglang_patches.contract.releases import installed


class RequestOf0517:
    """The part of a request that differs; ``tokens`` is the request's."""

    prefix_indices: torch.Tensor
    tokens: array[int]

    def __init__(self) -> None:
        self.req_pool_idx: int | None = None
        self.kv_committed_len = 0
        self.cache_protected_len = 0
        self.prefilled_to = 0
        self.last_node: Any = None
        self.prefix_indices = torch.empty(0, dtype=torch.int64)

    def get_fill_ids(self) -> array[int]:
        """The tokens up to the end of the present chunk."""
        return self.tokens[: self.prefilled_to]

    def locked(self, cache: Any, node: Any) -> None:
        """The request holds a node, which it has locked."""
        self.last_node = node

    @staticmethod
    def found(cache: Any, match: Any) -> torch.Tensor:
        """The slots of a match."""
        indices: torch.Tensor = match.device_indices
        return indices

    def store(self, cache: Any, whole: bool) -> None:
        """After a prefill, or a chunk of one."""
        cache.cache_unfinished_req(self, **({} if whole else {"chunked": True}))

    def release(self, cache: Any, insert: bool) -> None:
        """At the end; the row is freed afterwards."""
        cache.cache_finished_req(self, is_insert=insert, kv_len_to_handle=self.kv_committed_len)

    def forget(self) -> None:
        """Back in the queue."""
        self.last_node, self.prefix_indices = None, torch.empty(0, dtype=torch.int64)
        self.cache_protected_len = self.kv_committed_len = self.prefilled_to = 0


class RequestOf0523:
    """The same for SGLang 0.5.23."""

    tokens: array[int]

    def __init__(self) -> None:
        from sglang.srt.managers.schedule_batch import ReqKvInfo

        self.kv = ReqKvInfo()
        self.cache_salt: str | None = None
        self.prefilled_to = 0
        self.last_node: Any = None
        self.lock: Any = None
        self.prefix_indices = torch.empty(0, dtype=torch.int64)

    @property
    def req_pool_idx(self) -> int | None:
        index: int | None = self.kv.req_pool_idx
        return index

    @property
    def kv_committed_len(self) -> int:
        return int(self.kv.kv_committed_len)

    @kv_committed_len.setter
    def kv_committed_len(self, length: int) -> None:
        self.kv.kv_committed_len = self.kv.kv_allocated_len = length

    @property
    def cache_protected_len(self) -> int:
        return int(self.kv.cache_protected_len)

    @cache_protected_len.setter
    def cache_protected_len(self, length: int) -> None:
        self.kv.cache_protected_len = length

    @property
    def full_untruncated_fill_ids(self) -> array[int]:
        return self.tokens

    def locked(self, cache: Any, node: Any) -> None:
        from sglang.srt.mem_cache.base_prefix_cache import DecLockRefParams, TreeLock

        self.last_node, self.lock = node, TreeLock(node, DecLockRefParams())

    @staticmethod
    def found(cache: Any, match: Any) -> torch.Tensor:
        indices: torch.Tensor = cache.path_device_indices(match.last_device_node)
        return indices[: match.device_prefix_len]

    def store(self, cache: Any, whole: bool) -> None:
        cache.checkpoint(self, up_to=self.prefilled_to)

    def release(self, cache: Any, insert: bool) -> None:
        # As release_kv_cache() does, which asks for settings of a server.
        if insert:
            cache.checkpoint(self, up_to=self.kv_committed_len)
        held = (self.cache_protected_len, self.kv_committed_len)
        if held[0] < held[1]:
            cache.token_to_kv_pool_allocator.free_segment(
                cache.req_to_token_pool.req_to_token[self.req_pool_idx, slice(*held)], start_pos=held[0]
            )
        cache.unlock(self.lock)
        self.lock = None
        cache.on_release(self, checkpointed=insert)

    def forget(self) -> None:
        self.last_node = None
        self.cache_protected_len = self.kv_committed_len = self.prefilled_to = 0
        self.kv.cache_inserted_len = 0


RequestOfEngine = {"0.5.17": RequestOf0517, "0.5.23": RequestOf0523}[installed()]
