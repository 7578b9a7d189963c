"""A radix cache that knows the agent of every request, and evicts by a policy of :mod:`hive.server.eviction`.

The mixin :class:`AgentAware` is shared with :mod:`sglang_patches.cache.hiradix_cache`, which has a second tier. A
request's reuse is counted once, when the request is first stored in the tree.  Until then, its last node is the one
that its prefix matched at admission.  Calls of ``match_prefix``, which the queue repeats, do not count as uses.

A request may store KV that is already in the tree: two requests of one batch may match nothing, compute the same
tokens, and the second one's slots are then freed.  This is not a hit, but the second request continues from the first
one's nodes, so they no longer belong to a single session.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, EvictResult
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.evict_policy import EvictionStrategy
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey, TreeNode

from hive.server.agents.registry import OTHER, AgentRegistry
from hive.server.eviction.accounting import ResidencyAccounting, Use
from hive.server.eviction.base import EvictionPolicy, Weigh
from hive.server.eviction.dialogues import HIT_BUCKETS, Dialogue, hit_bucket
from hive.server.eviction.hints import Event, Hint
from hive.server.eviction.leaves import LeafIndex
from hive.server.eviction.node import DISCARDED, NodeRecord
from hive.server.eviction.policies import ENGINE_POLICIES, policy_of
from hive.server.eviction.policies.density import DensityPolicy, DensitySettings
from hive.server.integrity import IntegrityError
from sglang_patches.contract.releases import current

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req

    from sglang_patches.requests.request_state import RequestState

BATCH_SHARE = 100
"""The smallest eviction batch is the pool's size divided by this number; from the device at most as many pages as there
are leaves, divided by LEAVES_PER_PAGE."""
LEAVES_PER_PAGE = 8


class WorthStrategy(EvictionStrategy):  # type: ignore[misc]
    """A policy as an SGLang eviction strategy, for its heaps: they evict from the host, and write back."""

    def __init__(self, cache: AgentAware) -> None:
        self._cache = cache

    def get_priority(self, node: TreeNode) -> tuple[float, int, int]:
        return (self._cache.worth_of(node), self._cache.record_of(node).used, node.id)


class AgentAware(current().storing):  # type: ignore[misc]
    """Mixin that keeps a record on every node and evicts by a policy."""

    def __init__(
        self,
        params: CacheInitParams,
        *args: Any,
        agents: AgentRegistry,
        policy: EvictionPolicy | None,
    ) -> None:
        self.agents = agents
        self.policy = policy
        self._release = current()
        self.accounting = ResidencyAccounting(policy)
        self.evictions = 0
        self.eviction_seconds = 0.0
        self._anonymous = Use(OTHER, None)
        self._storing: Use | None = None
        """Owner of the KV that is being stored in the tree; also None for a health check."""
        self._storing_request: RequestState | None = None
        self._weigh: Weigh | None = None
        self._weighed: dict[int, float] = {}
        """Scores by node id, during an eviction by SGLang."""
        super().__init__(params, *args)
        if policy is not None:
            self.evictable_leaves: Any = LeafIndex(policy)
            self.eviction_strategy: EvictionStrategy = WorthStrategy(self)

    def reset(self) -> None:
        super().reset()
        self.accounting.flushed()

    def end_session(self, session: str) -> None:
        """End a session: KV that only this session used is evicted first."""
        ended = self.accounting.end_session(session)
        if ended is not None and isinstance(self.evictable_leaves, LeafIndex):
            self.evictable_leaves.session_ended(ended)

    def departed(self, req: Req, now: float, event: Event | None) -> None:
        """Note that a request has ended.

        Args:
            req: the request.
            now: the time, in seconds, the same on all ranks.
            event: what its session waits for, as far as the server sees.
        """
        attached = getattr(req, "hive", None)
        if attached is not None and attached.use is not None:
            self.accounting.departed(attached.use, now, event)

    def hint(self, session: str, hint: Hint, now: float) -> None:
        """Note what a client says about the next request of a session.

        The index of leaves needs no update for this or for :meth:`departed`: it looks up the state of their dialogues.
        """
        self.accounting.hinted(session, hint, now)

    def observed(self, session: str, event: Event, now: float) -> None:
        """Note what a session waits for, as far as the server saw after its request had ended."""
        self.accounting.observed(session, event, now)

    def discard(self, node: TreeNode) -> None:
        """Evict a leaf before all others, unless it is in use, shared, or no leaf any more."""
        if not isinstance(self.evictable_leaves, LeafIndex) or node not in self.evictable_leaves:
            return
        record = self.record_of(node)
        if record.session is None:
            return
        # An indexed record must not change.
        self.evictable_leaves.discard(node)
        record.session = DISCARDED
        self.evictable_leaves.add(node)

    def summary(self) -> dict[str, Any]:
        """Return state and counters since start, as JSON-safe values."""
        return {
            "policy": self.policy.name if self.policy else self.eviction_policy,
            "capacity_tokens": self.token_to_kv_pool_allocator.size,
            "admissions": self.accounting.clock,
            "evictions": self.evictions,
            "eviction_seconds": self.eviction_seconds,
            "resident_tokens": self.accounting.resident.total(),
            "evicted_tokens": sum(total.evicted for total in self.accounting.totals.values()),
        }

    def worth_of(self, node: TreeNode) -> float:
        """Return the score of one node."""
        known = self._weighed.get(node.id)
        return known if known is not None else self._worths([node], self._weigh or self._weighing())[0]

    @contextmanager
    def weighed(self, nodes: Collection[TreeNode]) -> Iterator[None]:
        """Score all nodes at once, for SGLang's heaps, which ask for one node at a time."""
        # Eviction from the device may write to the host, which evicts from the host first.
        before = self._weigh, self._weighed
        self._weigh = weigh = self._weighing()
        self._weighed = dict(zip((node.id for node in nodes), self._worths(nodes, weigh), strict=True))
        try:
            yield
        finally:
            self._weigh, self._weighed = before

    def _weighing(self) -> Weigh:
        assert self.policy is not None
        self.accounting.update_retained(self.token_to_kv_pool_allocator.size)
        return self.policy.weighing(self.accounting.clock, self.accounting.now)

    def _worths(self, nodes: Collection[TreeNode], weigh: Weigh) -> list[float]:
        assert self.policy is not None
        records = [self.record_of(node) for node in nodes]
        classes = np.array([self.policy.class_of(record) for record in records], np.int32)
        used = np.array([record.used for record in records], np.int64)
        worths: list[float] = weigh(classes, used).tolist()
        return worths

    def check_integrity(self) -> None:
        """Check that the accounting matches the tree, node by node; for tests and for finding leaks.

        Raises:
            IntegrityError: naming the error and where it is.
        """
        nodes = subtree(self.root_node)[1:]
        for node in nodes:
            self._check_node(node)
        kept = [node for node in nodes if node.value is not None]
        free = [node for node in kept if node.lock_ref == 0]
        leaves = [node for node in free if all(child.value is None for child in node.children.values())]
        paths = {dialogue: [0] * HIT_BUCKETS for dialogue in self.accounting.dialogues}
        resident: Counter[str] = Counter()
        held: Counter[str] = Counter()
        for node in kept:
            resident[node.hive.producer] += len(node.value)
            held[node.hive.agent] += len(node.value)
            _add_to_path(paths, node.hive, len(node.value))
        evictable = sum(len(node.value) for node in free)
        protected = resident.total() - evictable
        for other in self._on_device_outside_tree():
            resident[other.hive.producer] += len(other)
            held[other.hive.agent] += len(other)
            _add_to_path(paths, other.hive, len(other))
            if not other.own.leases and isinstance(self.evictable_leaves, LeafIndex):
                leaves.append(other)
        for what, counted, found in (
            ("evictable tokens", self.evictable_size_, evictable),
            ("protected tokens", self.protected_size_, protected),
            ("evictable leaves", _ids(self.evictable_leaves), _ids(leaves)),
            ("resident tokens by agent", dict(self.accounting.resident), dict(resident)),
            ("resident tokens by last user", dict(self.accounting.held), dict(held)),
            (
                "tokens on the paths of dialogues",
                {dialogue.number: dialogue.path for dialogue in paths},
                {dialogue.number: path for dialogue, path in paths.items()},
            ),
        ):
            if counted != found:
                raise IntegrityError(f"{what}: {counted} in the accounting, {found} in the tree")
        if isinstance(self.evictable_leaves, LeafIndex) and (stale := self.evictable_leaves.outdated()):
            raise IntegrityError(f"leaves that have changed since they were indexed: {_ids(stale)}")

    def _on_device_outside_tree(self) -> Collection[Any]:
        """Return the encoded segments on the device, which are counted but not in the tree; without a segment store,
        none.
        """
        return ()

    def _check_node(self, node: TreeNode) -> None:
        """Raise IntegrityError unless a node is well-formed."""
        record: NodeRecord | None = getattr(node, "hive", None)
        page = self.page_size
        for wrong, problem in (
            (node.parent.children.get(node.key.child_key(page)) is not node, "is not its parent's child"),
            (
                len(node.key) == 0 or len(node.key) % page != 0,
                f"has {len(node.key)} tokens, which is not a multiple of the page size",
            ),
            (node.value is not None and len(node.value) != len(node.key), "has fewer slots than tokens"),
            (record is None and node.value is not None, "is on the device without a record"),
            (
                record is not None and record.on_device != (node.value is not None),
                "is not in the tier that its record names",
            ),
            (node.value is not None and node.parent.value is None, "is on the device without its parent"),
        ):
            if wrong:
                raise IntegrityError(f"node {node.id} {problem}")

    # Requests enter the tree and leave it.

    @contextmanager
    def storing_for(self, req: Req) -> Iterator[None]:
        """Attribute stored KV to the request inside the context, and count the use of its prefix."""
        self._storing = self._admit(req)
        self._storing_request = getattr(req, "hive", None)
        try:
            yield
        finally:
            self._storing = self._storing_request = None

    def _admit(self, req: Req) -> Use | None:
        """Count a request's use of its prefix once; return the request's identity, None for a health check."""
        attached = getattr(req, "hive", None)
        if attached is None:
            return None
        use: Use | None = attached.use
        if use is None:
            use = attached.use = self.accounting.use(
                self.agents.profile(attached.agent).name, attached.session
            )
            producers = self.accounting.admit(use, self._path(req), attached.arrived_at or None)
            self.agents.reused(use.agent, producers)
        return use

    def _path(self, req: Req) -> list[tuple[NodeRecord, int]]:
        """Return the nodes that an admitted request matched, deepest first, each with its number of tokens."""
        path = []
        node = req.last_node
        while node is not None and node is not self.root_node:
            path.append((self.record_of(node), len(node.key)))
            node = node.parent
        return path

    # Nodes of the tree.

    def record_of(self, node: TreeNode) -> NodeRecord:
        """Return the record of a node; a new one if a storage tier loaded the node directly to the host."""
        record: NodeRecord | None = getattr(node, "hive", None)
        if record is None:
            record = node.hive = NodeRecord(OTHER, OTHER, self.accounting.clock, None, on_device=False)
        return record

    def _update_leaf_status(self, node: TreeNode) -> None:
        # Upstream calls this for every node that is new or back on the device.
        if node.value is not None and node is not self.root_node:
            if not self._release.on_host(node) and getattr(node, "hive", None) is None:
                node.hive = self.accounting.stored(self._storing or self._anonymous, len(node.key))
                if self._storing_request is not None:
                    self._storing_request.leaf = node
            elif not (record := self.record_of(node)).on_device:
                self.accounting.returned(record, len(node.key), self._storing)
        super()._update_leaf_status(node)

    def _inc_hit_count(self, node: TreeNode, *args: Any, **kwargs: Any) -> None:
        # Upstream calls this for every node on the device that an insertion passes; a new node may have no record
        # yet.
        record: NodeRecord | None = getattr(node, "hive", None)
        if (
            self._storing is not None
            and record is not None
            and (
                (record.session is not None and record.session is not self._storing.session)
                or (record.dialogue is not None and record.dialogue is not self._storing.dialogue)
            )
        ):
            # The request locked only the nodes that it matched, and an indexed record must not change.
            indexed = node in self.evictable_leaves
            self.evictable_leaves.discard(node)
            self.accounting.joined(record, len(node.key), self._storing)
            if indexed:
                self.evictable_leaves.add(node)
        super()._inc_hit_count(node, *args, **kwargs)

    def _split_node(self, key: RadixKey, child: TreeNode, split_len: int) -> TreeNode:
        prefix = super()._split_node(key, child, split_len)
        prefix.hive = self.record_of(child).split()
        return prefix

    def _delete_leaf(self, node: TreeNode) -> None:
        self.accounting.evicted(node.hive, len(node.key))
        super()._delete_leaf(node)

    # Eviction.

    def evict(self, params: EvictParams) -> EvictResult:
        started = time.perf_counter()
        if not isinstance(self.evictable_leaves, LeafIndex) or self._engine_evicts():
            result = super().evict(params)
        else:
            result = EvictResult(num_tokens_evicted=self._evict(self.evictable_leaves, params.num_tokens))
            self.update_eviction_metrics(result.num_tokens_evicted, started)
        self.evictions += 1
        self.eviction_seconds += time.perf_counter() - started
        return result

    def _engine_evicts(self) -> bool:
        return bool(self.disable)

    def _evict(self, leaves: LeafIndex[TreeNode], wanted: int) -> int:
        assert self.policy is not None
        if wanted <= 0:
            return 0
        # KV that is evicted ahead of need may be needed sooner, so only so much that weighing the leaves pays off.
        ahead = len(leaves) // LEAVES_PER_PAGE * self.page_size
        wanted = max(wanted, min(ahead, self._batch(wanted, self.token_to_kv_pool_allocator.size)))
        self.accounting.update_retained(self.token_to_kv_pool_allocator.size)
        page = self.page_size
        evicted = 0
        with closing(leaves.victims(self.accounting.clock, self.accounting.now)) as victims:
            for leaf in victims:
                missing = -(-(wanted - evicted) // page) * page
                if self.policy.trims:
                    self._trim(leaf, missing)
                evicted += self._free(leaf)
                if evicted >= wanted:
                    break
        return evicted

    def _trim(self, leaf: TreeNode, wanted: int) -> None:
        """Split a victim so that only its last ``wanted`` tokens are evicted."""
        if wanted < len(leaf.key):
            self._split_node(leaf.key, leaf, len(leaf.key) - wanted)

    def _batch(self, wanted: int, size: int) -> int:
        """Return how many tokens to evict from a pool of ``size`` tokens when ``wanted`` are needed."""
        assert self.policy is not None
        if wanted <= 0 or not self.policy.trims:
            return wanted
        # Choosing victims costs the same for one token as for many, and more free slots will be needed soon.
        return max(wanted, size // BATCH_SHARE)

    def _free(self, leaf: TreeNode) -> int:
        """Free a leaf's slots and remove it from the device; return the number of its tokens."""
        raise NotImplementedError


class HiveRadixCache(AgentAware, RadixCache):  # type: ignore[misc]
    """One tier: the device."""

    def _free(self, leaf: TreeNode) -> int:
        self.token_to_kv_pool_allocator.free_segment(leaf.value, start_pos=0)
        self._delete_leaf(leaf)
        self._release.announce_removal(self, leaf)
        return len(leaf.value)


def subtree(root: TreeNode) -> list[TreeNode]:
    """Return a node and all nodes below it."""
    nodes = [root]
    for node in nodes:
        nodes.extend(node.children.values())
    return nodes


def _add_to_path(paths: dict[Dialogue, list[int]], record: NodeRecord, tokens: int) -> None:
    if record.dialogue is not None and record.on_path:
        paths[record.dialogue][hit_bucket(record.hits)] += tokens


def _ids(nodes: Iterable[TreeNode]) -> list[int]:
    return sorted(node.id for node in nodes)


def build_radix_cache(
    params: CacheInitParams, policy: str, agents: AgentRegistry, density: DensitySettings | None = None
) -> HiveRadixCache:
    """Build the cache of ``--hive-eviction``; changes ``params`` if the policy is SGLang's own.

    ``density`` sets constants of that policy for which there are no flags.
    """
    if policy in ENGINE_POLICIES:
        params.eviction_policy = policy
    score = agents.window.score
    decides = policy_of(policy, score) if density is None else DensityPolicy(score, density)
    return HiveRadixCache(params, agents=agents, policy=decides)
