"""The agent-aware radix cache with a second tier in host memory (``--enable-hierarchical-cache``)."""

from __future__ import annotations

from sglang.srt.mem_cache.hiradix_cache import HiRadixCache
from sglang.srt.mem_cache.radix_cache import TreeNode

from sglang_patches.radix_cache import AgentAware


class HiveHiRadixCache(AgentAware, HiRadixCache):  # type: ignore[misc]
    """Two tiers: the device, and host memory behind it.  The same worth decides in both."""

    def _engine_evicts(self) -> bool:
        # Writing back stages victims on their way to the host; upstream's loop does, over the same worth.
        return super()._engine_evicts() or self.cache_controller.write_policy == "write_back"

    def _free(self, leaf: TreeNode) -> int:
        freed = self._evict_backuped(leaf) if leaf.backuped else self._evict_regular(leaf)
        return int(freed)

    def _detach_backuped(self, node: TreeNode) -> int:
        self.book.evicted(node.hive, len(node.value))
        return int(super()._detach_backuped(node))

    def _drop_subtree_no_host(self, root: TreeNode) -> int:
        if not any(node.host_ref_counter for node in _subtree(root)):
            for node in _subtree(root):
                if node.value is not None:
                    self.book.evicted(node.hive, len(node.value))
        return int(super()._drop_subtree_no_host(root))


def _subtree(root: TreeNode) -> list[TreeNode]:
    nodes = [root]
    for node in nodes:
        nodes.extend(node.children.values())
    return nodes
