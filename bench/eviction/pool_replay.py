"""A replay on SGLang's own radix cache and allocator, as its scheduler drives them."""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from bench.eviction.closed_loop import Moment
from bench.eviction.outcome import Outcome
from bench.eviction.policies import Policy
from bench.eviction.schedule import most_running
from bench.traces.trace import Event, Request, Tokens, Trace
from hive.server.agents.registry import AgentRegistry
from hive.server.eviction.hints import Hint
from sglang_patches.cache.radix_cache import build_radix_cache
from sglang_patches.requests.request_state import RequestState

_MAX_AGENTS = 256
_FIRST_S = 1.0
"""The time at which a replay begins; 0 would mean that it is unknown."""


class Leak(AssertionError):
    """After a replay the pool does not add up."""


class ReplayedRequest:
    """What the caches read of SGLang's requests, under its names."""

    def __init__(self, rid: str, request: Request, agent: str | None, session: str | None) -> None:
        self.rid = rid
        self.origin_input_ids = request.prompt
        self.output_ids: Tokens = array("q")
        self.extra_key: str | None = None
        self.priority = 0
        self.hive = RequestState(agent, session)
        self.sampling_params = SimpleNamespace(custom_params={"hive": {"agent": agent, "session": session}})
        self.req_pool_idx: int | None = None
        self.last_node: Any = None
        self.cache_protected_len = 0
        self.prefix_indices = torch.empty(0, dtype=torch.int64)
        self.cached_tokens = 0
        """Of the prompt, found at admission."""
        # What the cache that knows sessions reads, too.
        self.session_id = session
        self.session = self.swa_uuid_for_lock = None
        self.session_generation: int | None = None
        self.skip_lock_node_ids: dict[Any, Any] = {}
        self.swa_prefix_lock_released = False
        self.finished_reason = "length"

    def get_fill_ids(self) -> Tokens:
        return self.origin_input_ids


class RequestSlots:
    """SGLang's table of where each running request's tokens lie in the pool."""

    def __init__(self, slots: int, longest: int) -> None:
        self.req_to_token = torch.zeros((slots, longest), dtype=torch.int32)
        self.free = list(range(slots))

    def write(self, place: Any, indices: torch.Tensor) -> None:
        """Called by the cache, too."""
        self.req_to_token[place] = indices.to(torch.int32)


class PoolReplay:
    """A pool, its radix cache, and what runs in it."""

    def __init__(
        self,
        trace: Trace,
        events: Sequence[Event],
        pool: int,
        policy: Policy,
        moments: Sequence[Moment] | None = None,
    ) -> None:
        """``moments`` are those of the trace's requests, if their times are known."""
        self.trace, self.events, self.pool, self.policy, self.moments = trace, events, pool, policy, moments
        self.allocator = TokenToKVPoolAllocator(pool, torch.float16, "cpu", None, False)
        longest = max(len(request.prompt) + len(request.output) for request in trace.requests)
        self.slots = RequestSlots(most_running(events), longest)
        self.registry = AgentRegistry(_MAX_AGENTS, window=policy.window)
        self.cache = self._cache()
        self.outcome = Outcome()
        self._running: dict[int, ReplayedRequest] = {}

    def _cache(self) -> Any:
        params = CacheInitParams(
            disable=False,
            req_to_token_pool=self.slots,
            token_to_kv_pool_allocator=self.allocator,
            page_size=1,
        )
        if self.policy.hive:
            return build_radix_cache(params, self.policy.eviction, self.registry, self.policy.density)
        params.eviction_policy = self.policy.eviction
        if self.policy.sessions:
            params.enable_session_radix_cache, params.tree_components = True, (ComponentType.FULL,)
            return UnifiedRadixCache(params)
        return RadixCache(params)

    def run(self) -> Outcome:
        """All events. Raises `Leak` when tokens got lost, or are counted twice."""
        for event in self.events:
            self.step(event)
        self.check()
        return self.outcome

    def step(self, event: Event) -> None:
        if event[0] == "start":
            self._start(event[1])
        elif event[0] == "finish":
            self._finish(event[1])
        elif self.policy.ends:
            self.registry.end_session(event[1])
            if self.policy.hive:
                self.cache.end_session(event[1])
            elif self.policy.sessions:
                self.cache.release_radix_session(event[1])

    def check(self) -> None:
        """See that every token of the pool is either free or in the tree, once. Raises `Leak` otherwise."""
        in_tree, free = self.cache.total_size(), self.allocator.available_size()
        if self.policy.sessions:
            # The size of other components comes second.
            in_tree = in_tree[0]
        if in_tree + free != self.pool:
            raise Leak(f"{in_tree} tokens in the tree and {free} free are not the pool's {self.pool}")
        counted = self.cache.evictable_size() + self.cache.protected_size()
        if counted != in_tree:
            raise Leak(f"the cache counts {counted} tokens, but holds {in_tree}")
        indices = torch.cat([self.cache.all_values_flatten(), self.allocator.free_pages])
        if len(set(indices.tolist())) != self.pool:
            raise Leak("some tokens of the pool are used twice")

    def _start(self, number: int) -> None:
        """Prefill: match, lock, make room, compute, insert."""
        request = self.trace.requests[number]
        prompt = request.prompt
        agent, session = (request.agent, request.session) if self.policy.agents else (None, None)
        running = self._running[number] = ReplayedRequest(str(number), request, agent, session)
        if self.moments is not None:
            running.hive.arrived_at = _FIRST_S + self.moments[number].arrived
        self.registry.arrived(agent, session, len(prompt))
        if self.policy.sessions and session is not None:
            running.session_generation = self.cache.ensure_session_generation(session)
        match = self.cache.match_prefix(
            MatchPrefixParams(key=RadixKey(prompt, limit=len(prompt) - 1), req=running)
        )
        found = len(match.device_indices)
        self.cache.inc_lock_ref(match.last_device_node)
        computed = self._allocate(len(prompt) - found)
        running.req_pool_idx = self.slots.free.pop()
        running.last_node = match.last_device_node
        running.cache_protected_len = running.cached_tokens = found
        running.prefix_indices = match.device_indices
        self.slots.write((running.req_pool_idx, slice(0, found)), match.device_indices)
        self.slots.write((running.req_pool_idx, slice(found, len(prompt))), computed)
        self.outcome.count(request.agent, len(prompt), found)
        self.cache.cache_unfinished_req(running)

    def _finish(self, number: int) -> None:
        """Decode as one step: make room for the output, and leave all to the cache."""
        request = self.trace.requests[number]
        running = self._running.pop(number)
        prompt, kept = len(request.prompt), len(request.kept)
        slot = running.req_pool_idx
        assert slot is not None
        self.slots.write((slot, slice(prompt, kept)), self._allocate(kept - prompt))
        running.output_ids = request.output
        self.cache.cache_finished_req(running, kv_len_to_handle=kept)
        self.slots.free.append(slot)
        if self.policy.hive and self.moments is not None:
            self._departed(running, self.moments[number])
        self.registry.left(
            running.hive.agent,
            cached_tokens=running.cached_tokens,
            generated=len(request.output),
            replayed=0,
        )

    def _departed(self, running: ReplayedRequest, moment: Moment) -> None:
        """Say what the server knows when an answer is over, and what the client adds."""
        now = _FIRST_S + moment.finished
        self.cache.departed(running, now, moment.stopped)
        if self.policy.hints and running.hive.session is not None:
            self.cache.hint(running.hive.session, Hint(moment.then, moment.hinted), now)

    def _allocate(self, count: int) -> torch.Tensor:
        """Places of the pool for new tokens; what is short is evicted."""
        short = count - self.allocator.available_size()
        if short > 0:
            began = time.process_time()
            result = self.cache.evict(EvictParams(num_tokens=short))
            self.outcome.evict_seconds += time.process_time() - began
            self.outcome.evict_calls += 1
            self.outcome.evicted_tokens += result.num_tokens_evicted
        indices: torch.Tensor | None = self.allocator.alloc(count)
        assert indices is not None, "the schedule overcommits the pool"
        return indices
