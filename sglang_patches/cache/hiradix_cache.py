"""The agent-aware radix cache with a second tier in host memory (``--enable-hierarchical-cache``)."""

from __future__ import annotations

from sglang.srt.mem_cache.hiradix_cache import HiRadixCache
from sglang.srt.mem_cache.radix_cache import TreeNode

from hive.server.integrity import IntegrityError
from sglang_patches.cache.radix_cache import AgentAware, subtree


class HiveHiRadixCache(AgentAware, HiRadixCache):  # type: ignore[misc]
    """Two tiers: the device, and host memory as the second tier. Both evict by the same scores."""

    def _engine_evicts(self) -> bool:
        # Write-back stages victims on their way to the host; upstream's loop does this, with the same scores.
        return super()._engine_evicts() or self.cache_controller.write_policy == "write_back"

    def evict_host(self, num_tokens: int) -> None:
        if self.policy is None:
            super().evict_host(num_tokens)
            return
        # For each node that is written to a full host, upstream evicts just that node's tokens.
        with self.weighed(self.evictable_host_leaves):
            super().evict_host(
                self._batch(num_tokens, self.token_to_kv_pool_host.size, len(self.evictable_host_leaves))
            )

    def _evict_write_back(self, num_tokens: int) -> int:
        if self.policy is None:
            return int(super()._evict_write_back(num_tokens))
        with self.weighed(self.evictable_leaves):
            return int(
                super()._evict_write_back(
                    self._batch(num_tokens, self.token_to_kv_pool_allocator.size, len(self.evictable_leaves))
                )
            )

    def _free(self, leaf: TreeNode) -> int:
        freed = self._evict_backuped(leaf) if leaf.backuped else self._evict_regular(leaf)
        return int(freed)

    def _detach_backuped(self, node: TreeNode) -> int:
        self.accounting.evicted(node.hive, len(node.value))
        return int(super()._detach_backuped(node))

    def _drop_subtree_no_host(self, root: TreeNode) -> int:
        if not any(node.host_ref_counter for node in subtree(root)):
            for node in subtree(root):
                if node.value is not None:
                    self.accounting.evicted(node.hive, len(node.value))
        return int(super()._drop_subtree_no_host(root))

    def check_integrity(self) -> None:
        super().check_integrity()
        away = [node for node in subtree(self.root_node)[1:] if node.value is None]
        for node in away:
            if node.host_value is None or len(node.host_value) != len(node.key):
                raise IntegrityError(f"node {node.id} is neither on the device nor complete on the host")
        leaves = {
            node
            for node in away
            if node.lock_ref == 0 and not any(child.backuped for child in node.children.values())
        }
        if self.evictable_host_leaves != leaves:
            raise IntegrityError("the evictable host leaves do not match the tree")
