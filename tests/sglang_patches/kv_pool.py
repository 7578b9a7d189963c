"""A KV pool, a radix cache over it, and requests that come and go as SGLang's scheduler lets them.

The pool, its allocators, the table of requests and the tree are SGLang's own; only the model is missing.  In place of
KV every slot holds what the KV there was computed from, so a match that leads to the wrong slot is found out.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InitLoadBackParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey, TreeNode

from hive.server.agents.registry import AgentRegistry
from hive.server.agents.window import WindowSettings
from hive.server.eviction.base import EvictionPolicy
from hive.server.eviction.hints import EVENTS, Event, Hint
from hive.server.eviction.policies import policy_of
from hive.server.eviction.policies.density import DensityPolicy, DensitySettings
from sglang_patches.cache.radix_cache import build_radix_cache, subtree
from sglang_patches.requests.request_state import RequestState
from tests.sglang_patches.pool_engine import RequestOfEngine

SLOTS = 64
LONGEST = 2048


class PooledRequest(RequestOfEngine):  # type: ignore[misc, valid-type]
    """What the caches read of SGLang's requests, under its names."""

    def __init__(self, rid: str, prompt: Sequence[int], agent: str | None, session: str | None) -> None:
        super().__init__()
        self.rid = rid
        self.origin_input_ids = array("q", prompt)
        self.output_ids = array("q")
        self.extra_key: str | None = None
        self.priority = 0
        self.hive = RequestState(agent, session)
        self.inflight_middle_chunks = 1
        self.matched = 0
        """Tokens found when it was last admitted."""

    @property
    def tokens(self) -> array[int]:
        return self.origin_input_ids + self.output_ids


class HealthCheck(PooledRequest):
    """A request that Hive attached nothing to."""

    def __init__(self, rid: str, prompt: Sequence[int]) -> None:
        super().__init__(rid, prompt, None, None)
        del self.hive


class KvPool:
    """A pool, its cache and its requests; :meth:`check` verifies that no slot is lost."""

    def __init__(
        self,
        size: int,
        policy: str = "density",
        page: int = 1,
        *,
        window: WindowSettings | None = None,
        density: DensitySettings | None = None,
        max_agents: int = 64,
        is_eagle: bool = False,
    ) -> None:
        self.size, self.page = size, page
        self.allocator = self._allocator()
        self.table = ReqToTokenPool(SLOTS, LONGEST, "cpu", False)
        self.agents = AgentRegistry(max_agents, window=window)
        self.params = CacheInitParams(
            disable=False,
            req_to_token_pool=self.table,
            token_to_kv_pool_allocator=self.allocator,
            page_size=page,
            is_eagle=is_eagle,
        )
        self.cache: Any = self._cache(policy, density)
        self.running: list[PooledRequest] = []
        self._kv = torch.zeros(size + page, dtype=torch.int64)
        """By slot: a hash of all tokens up to the one whose KV is there."""
        self.requests = 0
        self.now = 0.0
        """Seconds.  While it is 0, requests come without times."""

    def _allocator(self) -> Any:
        if self.page == 1:
            return TokenToKVPoolAllocator(self.size, torch.float16, "cpu", None, False)
        allocator = PagedTokenToKVPoolAllocator(self.size, self.page, torch.float16, "cpu", None, False)
        allocator.debug_mode = True  # it then sees itself that no page is freed twice, or in parts
        return allocator

    def _cache(self, policy: str, density: DensitySettings | None) -> Any:
        return build_radix_cache(self.params, policy, self.agents, density)

    def _policy(self, name: str, density: DensitySettings | None) -> EvictionPolicy | None:
        score = self.agents.window.score
        return policy_of(name, score) if density is None else DensityPolicy(score, density)

    # What the scheduler does.

    def request(
        self, prompt: Sequence[int], agent: str | None = None, session: str | None = None
    ) -> PooledRequest:
        """A request arrives; it waits."""
        self.requests += 1
        self.agents.arrived(agent, session, len(prompt))
        req = PooledRequest(str(self.requests), prompt, agent, session)
        req.hive.arrived_at = self.now
        return req

    def admit(self, req: PooledRequest, chunk: int | None = None) -> bool:
        """Give a request its KV and prefill it, or the first tokens of it; False where there is no room."""
        tokens = req.tokens
        match = self.match(tokens, req)
        indices, node = req.found(self.cache, match), match.last_device_node
        upto = (
            len(tokens) if chunk is None else min(len(tokens), len(indices) + match.host_hit_length + chunk)
        )
        self.cache.inc_lock_ref(node)
        if not self.has_room(upto - len(indices)):
            self.cache.dec_lock_ref(node)
            return False
        if match.host_hit_length:
            loaded, node = self._load_back(match)
            indices = torch.cat([indices, loaded])
            self.cache.inc_lock_ref(node)
            self.cache.dec_lock_ref(match.last_device_node)
        assert self.table.alloc([req]) is not None
        req.locked(self.cache, node)
        req.prefix_indices = indices
        req.matched = req.cache_protected_len = req.kv_committed_len = len(indices)
        self.table.write((req.req_pool_idx, slice(0, len(indices))), indices.to(torch.int32))
        assert self.read(indices) == hashes(tokens)[: len(indices)], "a match leads to the KV of other tokens"
        self.running.append(req)
        self.prefill(req, upto)
        return True

    def _load_back(self, match: Any) -> Any:
        return self.cache.init_load_back(
            InitLoadBackParams(best_match_node=match.best_match_node, host_hit_length=match.host_hit_length)
        )

    def match(self, tokens: Sequence[int], req: PooledRequest | None = None) -> Any:
        """What of a prompt is resident; the last token is always computed."""
        key = RadixKey(array("q", tokens), None, limit=max(0, len(tokens) - 1))
        return self.cache.match_prefix(MatchPrefixParams(key=key, req=req))

    def resident(self, tokens: Sequence[int]) -> int:
        """How many tokens a request for these and one more would find."""
        return len(self.found([*tokens, -1]))

    def found(self, tokens: Sequence[int], req: PooledRequest | None = None) -> torch.Tensor:
        """Return the slots of a prompt's resident prefix."""
        return PooledRequest.found(self.cache, self.match(tokens, req))

    def has_room(self, tokens: int) -> bool:
        """Whether tokens fit in, a page of which may be used in part."""
        pages = -(-tokens // self.page)
        return bool(pages * self.page <= self.allocator.available_size() + self.cache.evictable_size())

    def prefill(self, req: PooledRequest, upto: int) -> None:
        """Compute the tokens up to a position; before the end of the prompt, this is a chunk."""
        self._extend(req, upto)
        req.prefilled_to = upto
        whole = upto == len(req.tokens)
        req.store(self.cache, whole)
        req.inflight_middle_chunks = int(not whole)

    def decode(self, req: PooledRequest, token: int) -> None:
        """Draw a token, and compute the KV of the one before it where that has none."""
        self._extend(req, len(req.tokens))
        req.output_ids.append(token)

    def finish(self, req: PooledRequest, insert: bool = True) -> None:
        """Give everything back to the cache; without ``insert`` as when a request is retracted or aborted."""
        self.running.remove(req)
        req.release(self.cache, insert)
        self.table.free(req)
        self.departed(req)
        self.agents.left(
            getattr(req, "hive", RequestState(None)).agent,
            cached_tokens=min(req.matched, len(req.origin_input_ids)),
            generated=len(req.output_ids),
            replayed=0,
        )

    def time_passes(self, chance: random.Random) -> None:
        """From now on requests come with times; some seconds later, a client may say what its session waits for."""
        self.now += chance.choice([0.5, 3.0, 100.0])
        session = chance.choice(["s", "t", "unknown"])
        match chance.randrange(3):
            case 0:
                event = chance.choice([None, *EVENTS])
                seconds = chance.choice([None, 0.0, 30.0]) if event is not None else None
                hint = Hint(event, seconds, chance.choice([-5, 0, 9]), chance.choice([None, 0.0, 60.0]))
                self.cache.hint(session, replace(hint, discard=chance.random() < 0.1), self.now)
            case 1:
                self.cache.observed(session, chance.choice(["tool", "human"]), self.now)

    def departed(self, req: PooledRequest, event: Event | None = None) -> None:
        """Say that a request is over, as the scheduler does if there are times."""
        if self.now:
            self.cache.departed(req, self.now, event)

    def retract(self, req: PooledRequest) -> None:
        """Send a running request back to the queue; it can be admitted again."""
        self.running.remove(req)
        req.release(self.cache, insert=False)
        self.table.free(req)
        req.forget()

    def run(
        self,
        prompt: Sequence[int],
        agent: str | None = None,
        session: str | None = None,
        output: Sequence[int] = (),
    ) -> PooledRequest:
        """Run a request from arrival to end; it leaves the KV of its prompt and of all output but the last token."""
        req = self.request(prompt, agent, session)
        assert self.admit(req), "the pool is too small"
        for token in output:
            self.decode(req, token)
        self.finish(req)
        return req

    def evict(self, tokens: int) -> int:
        return int(self.cache.evict(EvictParams(num_tokens=tokens)).num_tokens_evicted)

    def end_session(self, session: str) -> None:
        self.agents.end_session(session)
        self.cache.end_session(session)

    def flush(self) -> None:
        assert not self.running
        self.cache.reset()
        self.table.clear()
        self.allocator.clear()

    def _extend(self, req: PooledRequest, upto: int) -> None:
        """Slots for the tokens up to a place, as the paged allocator gives them, and their KV."""
        held, page = req.kv_committed_len, self.page
        if upto <= held:
            return
        tail = min(-held % page, upto - held)
        pages = -(-(upto - held - tail) // page)
        short = pages * page - self.allocator.available_size()
        if short > 0:
            self.evict(short)
        fresh = self.allocator.alloc(pages * page)
        assert fresh is not None, "has_room was asked before"
        row = self.table.req_to_token[req.req_pool_idx]
        rest = row[held - 1] + 1 + torch.arange(tail) if tail else torch.empty(0, dtype=torch.int64)
        indices = torch.cat([rest.to(torch.int64), fresh[: upto - held - tail]])
        self.table.write((req.req_pool_idx, slice(held, upto)), indices.to(torch.int32))
        self.write(indices, hashes(req.tokens)[held:upto])
        req.kv_committed_len = upto

    def write(self, slots: torch.Tensor, kv: list[int]) -> None:
        self._kv[slots] = torch.tensor(kv, dtype=torch.int64)

    def read(self, slots: torch.Tensor) -> list[int]:
        kv: list[int] = self._kv[slots].tolist()
        return kv

    # What must always hold.

    def check(self) -> None:
        """Raise AssertionError unless every slot has one owner, and the cache's accounting matches the tree."""
        self.cache.check_integrity()
        nodes = [node for node in subtree(self.cache.root_node)[1:] if node.value is not None]
        assert self.cache.total_size() == sum(len(node.value) for node in nodes)
        assert self.cache.evictable_size() + self.cache.protected_size() == self.cache.total_size()
        owned = [slot for node in nodes for slot in node.value.tolist()]
        for req in self.running:
            held = -(-req.kv_committed_len // self.page) * self.page
            row = self.table.req_to_token[req.req_pool_idx, : req.kv_committed_len].tolist()
            private = row[req.cache_protected_len :]
            if private and held > req.kv_committed_len:
                # The rest of a page that is used in part.
                private += range(row[-1] + 1, row[-1] + 1 + held - req.kv_committed_len)
            owned += private
        pages = (self.allocator.free_pages, self.allocator.release_pages)
        free = torch.cat([some for some in pages if some is not None]) * self.page
        owned += (free[:, None] + torch.arange(self.page)).flatten().tolist()
        first = self.page  # the page of slot 0 is for padding
        assert sorted(owned) == list(range(first, first + self.size))
        for node in nodes:
            assert self.read(node.value) == hashes(path_of(node))[-len(node.value) :], "a node has other KV"

    def leaves(self) -> list[TreeNode]:
        return list(self.cache.evictable_leaves)


def path_of(node: TreeNode) -> list[int]:
    """All tokens from the root to the end of a node."""
    tokens: list[int] = []
    while node.parent is not None:
        tokens[:0] = node.key.token_ids
        node = node.parent
    return tokens


def hashes(tokens: Sequence[int]) -> list[int]:
    """Of each beginning of a text."""
    result, last = [], 0
    for token in tokens:
        last = hash((last, token))
        result.append(last)
    return result
