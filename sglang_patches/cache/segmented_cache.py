"""A radix cache with a segment store: exact prefixes from the tree, followed by placed segments.

Placement uses SGLang's mechanism for prefixes on the host.  ``match_prefix`` reports how many tokens are available
after the exact prefix.  Once the request is admitted, ``init_load_back`` loads them, and they become part of the
request's prefix.  A :class:`Lease` records what they are: shared slots of a placement, or slots of the request's own
that the next forward pass computes.

A request is *tainted* if it has placed KV, or if its tokens have positions of their own.  KV that depends on placed
KV never enters the tree: it is moved to the store or freed.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.mem_cache.base_prefix_cache import (
    EvictParams,
    EvictResult,
    InitLoadBackParams,
    InsertParams,
    MatchPrefixParams,
    MatchResult,
)
from sglang.srt.mem_cache.common import evict_from_tree_cache
from sglang.srt.mem_cache.radix_cache import RadixKey, TreeNode

from hive.server.eviction.accounting import Use
from hive.server.eviction.leaves import LeafIndex
from hive.server.eviction.node import NodeRecord
from hive.server.integrity import IntegrityError
from hive.server.kv_segments.correctors.base import PlacedRun
from hive.server.kv_segments.plan import Intervals, Piece, Span, all_chosen, plan, runs_of
from hive.server.kv_segments.request import CONTEXTS, Keep, WireSpan
from hive.server.kv_segments.segment import EncodedSegment, Placement, SegmentKey
from hive.server.kv_segments.store import Move, SegmentStore, copy_of
from sglang_patches.cache.radix_cache import HiveRadixCache, subtree
from sglang_patches.requests.kv_state import KvState, Lease, state_of
from sglang_patches.requests.request_state import is_aborted

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req


class SegmentedRadixCache(HiveRadixCache):
    """A radix cache with a segment store; see the module."""

    def __init__(self, *args: Any, capacity: int, host_capacity: int = 0, **kwargs: Any) -> None:
        """``capacity`` and ``host_capacity`` are the store's, in tokens."""
        self.segments: SegmentStore | None = None
        self._private = 0
        """Number of private slots in all leases."""
        self.promised = 0
        """Tokens that admission has promised to requests other than the one being admitted."""
        super().__init__(*args, **kwargs)
        self.segments = SegmentStore(
            self._allocate,
            self.token_to_kv_pool_allocator.free,
            capacity,
            host_capacity,
            on_free=self._segment_freed,
            on_idle=self._segment_idle,
        )

    def reset(self) -> None:
        super().reset()
        if self.segments is not None:
            self.segments.clear()
        self._private = 0

    @property
    def store(self) -> SegmentStore:
        """The store; it does not exist before the first reset, which builds the tree."""
        assert self.segments is not None
        return self.segments

    # Admission.

    def match_prefix(self, params: MatchPrefixParams) -> MatchResult:
        state = state_of(params.req)
        if state is None:
            return super().match_prefix(params)
        # The request waits, possibly again, and may be admitted with other segments than before.
        self.release_lease(state)
        exact = self._empty_match_result if state.request.choreographed else super().match_prefix(params)
        begin = len(exact.device_indices)
        tokens = params.key.token_ids
        limit = len(tokens) - 1 if params.key.limit is None else min(params.key.limit, len(tokens) - 1)
        pieces = self._plan(state, tokens, begin, limit)
        placed = sum(len(piece) for piece in pieces if piece.source is not None)
        wanted = sum(max(min(span.end, limit) - max(span.start, begin), 0) for span in state.request.spans)
        state.counts |= {"exact": begin, "placed": 0, "recomputed": 0, "missing": wanted - placed}
        return exact._replace(host_hit_length=pieces[-1].end - begin) if pieces else exact

    def init_load_back(self, params: InitLoadBackParams) -> tuple[torch.Tensor, TreeNode]:
        req = params.req
        state = state_of(req)
        assert state is not None
        begin = len(req.prefix_indices)
        # Up to the end of the match, which may have been limited.
        pieces = self._plan(state, req.full_untruncated_fill_ids, begin, begin + params.host_hit_length)
        to_prefill = len(req.full_untruncated_fill_ids) - begin - params.host_hit_length
        lease = self._lease(state, pieces, begin, to_prefill)
        if lease is None:
            state.counts |= {"placed": 0, "recomputed": 0}
            state.counts["missing"] += sum(len(piece) for piece in pieces if piece.source is not None)
            if state.request.choreographed:
                # Ordinary prefill would compute its tokens at other positions.
                lease = self._lease(
                    state, [replace(piece, source=None) for piece in pieces], begin, to_prefill
                )
        if lease is None:
            if state.request.choreographed:
                from sglang.srt.managers.schedule_batch import FINISH_ABORT

                req.to_finish = FINISH_ABORT(
                    "The KV pool has too few free slots for the messages of this call: end sessions, delete messages, "
                    "or give the server more memory for KV",
                    status_code=HTTPStatus.SERVICE_UNAVAILABLE,
                )
            return req.prefix_indices[:0], req.last_node
        if not req.retracted_stain:
            # These tokens are not cache hits.
            req.already_computed = sum(map(len, lease.runs)) + len(lease.spare)
        return lease.indices, req.last_node

    def _plan(self, state: KvState, tokens: Any, begin: int, limit: int) -> list[Piece[EncodedSegment]]:
        spans = [
            Span(span.start, span.end, span.position, self._find(state, span, tokens))
            for span in state.request.spans
            if span.end > begin
        ]
        return plan(spans, begin, limit, to_the_end=state.request.choreographed)

    def _find(self, state: KvState, span: WireSpan, tokens: Any) -> EncodedSegment | None:
        segment = self.store.find(state.key(span.name, tokens, span.start, span.end))
        if segment is None or span.name in CONTEXTS:
            return segment
        # Messages are found by id. One with this id may have been created for a client that never got the response.
        return segment if segment.tokens == array("q", tokens[span.start : span.end]) else None

    def _lease(
        self, state: KvState, pieces: list[Piece[EncodedSegment]], begin: int, to_prefill: int
    ) -> Lease | None:
        """Allocate slots for the pieces; return None if there are no pieces, or too few free slots.

        A corrector needs more slots for the tokens that it recomputes, which the scheduler does not know about.  The
        ``to_prefill`` tokens that the request prefills next must still fit, and so must the tokens promised to other
        requests.
        """
        if not pieces:
            return None
        # Evicting for one piece must not evict another.
        with self.store.holding([piece.source for piece in pieces if piece.source is not None]):
            lease = self._lease_held(state, pieces, begin)
        if lease is not None:
            state.lease = lease
            left = self.token_to_kv_pool_allocator.available_size() + self.evictable_size()
            if left < to_prefill + self.promised:
                self.release_lease(state)
        return state.lease

    def _lease_held(self, state: KvState, pieces: list[Piece[EncodedSegment]], begin: int) -> Lease | None:
        """Do so for sources that are protected from eviction."""
        placed = [
            PlacedRun(piece.start, piece.end, piece.offset) for piece in pieces if piece.source is not None
        ]
        corrector = state.corrector
        chosen = [] if corrector.probes else corrector.select(placed)
        runs = runs_of(pieces, chosen)
        # In slot order: computed tokens, tokens that a corrector selects later, tokens that could not be shared.
        computed = sum(map(len, runs))
        spare = corrector.most(placed) if corrector.probes else 0
        shared, unshared = self._share([piece for piece in pieces if not all_chosen(piece, chosen)])
        private = self._allocate(computed + spare + sum(map(len, unshared)))
        if private is None:
            for _, segment, placement in shared:
                self.store.release(segment, placement)
            return None
        indices = torch.empty(pieces[-1].end - begin, dtype=torch.int64, device=self.device)
        for piece, _, placement in shared:
            part = placement.slots[piece.offset : piece.offset + len(piece)]
            indices[piece.start - begin : piece.end - begin] = part
        at = computed + spare
        for piece in unshared:
            part = private[at : at + len(piece)]
            indices[piece.start - begin : piece.end - begin] = part
            self.store.pending.append(copy_of(piece, part))
            at += len(piece)
        at = 0
        for run in runs:
            indices[run.start - begin : run.end - begin] = private[at : at + len(run)]
            at += len(run)
        self._private += len(private)
        state.counts |= {"placed": sum(map(len, placed)) - len(chosen), "recomputed": len(chosen)}
        self.store.statistics.hits += len(placed)
        readers = [(segment, placement) for _, segment, placement in shared]
        return Lease(
            begin, pieces, readers, private, private[computed : computed + spare], indices, placed, runs
        )

    def _share(
        self, pieces: list[Piece[EncodedSegment]]
    ) -> tuple[list[tuple[Piece[EncodedSegment], EncodedSegment, Placement]], list[Piece[EncodedSegment]]]:
        """Lease placements for pieces; return the pieces with a placement, and those whose copy the store cannot
        hold.
        """
        shared: list[tuple[Piece[EncodedSegment], EncodedSegment, Placement]] = []
        unshared: list[Piece[EncodedSegment]] = []
        for piece in pieces:
            if piece.source is None:
                continue
            placement = self.store.lease(piece.source, piece.position - piece.offset)
            if placement is None:
                unshared.append(piece)
            else:
                shared.append((piece, piece.source, placement))
        return shared, unshared

    def _allocate(self, tokens: int) -> torch.Tensor | None:
        evict_from_tree_cache(self, tokens)
        slots: torch.Tensor | None = self.token_to_kv_pool_allocator.alloc(tokens)
        return slots

    def release_lease(self, state: KvState) -> None:
        """End a request's lease and free its private slots."""
        private = self._end_lease(state)
        if private is not None:
            self.token_to_kv_pool_allocator.free(private)

    def _end_lease(self, state: KvState) -> torch.Tensor | None:
        """End a request's lease; return its private slots, which the caller must free."""
        lease, state.lease = state.lease, None
        if lease is None:
            return None
        for segment, placement in lease.readers:
            self.store.release(segment, placement)
        self._private -= len(lease.private)
        return lease.private

    # End of requests.

    def cache_unfinished_req(self, req: Req, chunked: bool = False) -> None:
        state = state_of(req)
        if state is None or not state.tainted:
            super().cache_unfinished_req(req, chunked=chunked)
            if state is not None and not chunked:
                self._keep_copies(req, state, len(req.origin_input_ids))
            return
        # The next chunk begins after this one; none of it is visible to other requests.
        row = self.req_to_token_pool.req_to_token[req.req_pool_idx, : len(req.get_fill_ids())]
        req.prefix_indices = row.to(torch.int64, copy=True)

    def cache_finished_req(self, req: Req, is_insert: bool = True, *, kv_len_to_handle: int) -> None:
        state = state_of(req)
        if state is None:
            super().cache_finished_req(req, is_insert, kv_len_to_handle=kv_len_to_handle)
            return
        ended = is_insert and not is_aborted(req)
        if not state.tainted:
            if ended:
                self._keep_copies(req, state, kv_len_to_handle)
            super().cache_finished_req(req, is_insert, kv_len_to_handle=kv_len_to_handle)
            return
        with self.storing_for(req):
            self._finish_tainted(req, state, kv_len_to_handle, keeping=ended)

    def _finish_tainted(self, req: Req, state: KvState, length: int, *, keeping: bool) -> None:
        """Store the segments to keep of the first ``length`` tokens, and free the rest."""
        row = self.req_to_token_pool.req_to_token[req.req_pool_idx, :length].to(torch.int64, copy=True)
        lease = state.lease
        exact = 0
        if lease is None:
            mine = Intervals([(req.cache_protected_len, length)])
            own = row[:0]
        else:
            mine = Intervals([*((run.start, run.end) for run in lease.runs), (lease.end, length)])
            # The first private slots belong to the runs and are in the row; the others may not be.
            own = lease.private[sum(map(len, lease.runs)) :]
        self._end_lease(state)
        if keeping:
            if lease is not None and lease.pieces[0].source is None and not state.request.choreographed:
                exact = lease.pieces[0].end
                mine.take(0, exact)
            for keep in state.request.keeps:
                end = self._end_of(req, keep, length)
                if keep in state.kept or end <= keep.start:
                    continue
                if end <= exact:
                    self._keep_copy(req, state, keep, end, row)
                elif mine.has(keep.start, end) and self._store(
                    req, state, keep, end, row[keep.start : end].clone()
                ):
                    mine.take(keep.start, end)
            if lease is not None and exact:
                # After the copies: slots of the tree may be evicted and become the target of a copy.
                self._insert_exact(req, lease.begin, row[:exact])
        rest = [row[start:end] for start, end in mine]
        self.token_to_kv_pool_allocator.free(torch.cat([own, *rest]))
        if req.last_node is not None:
            self.dec_lock_ref(req.last_node)

    def _insert_exact(self, req: Req, begin: int, slots: torch.Tensor) -> None:
        """Insert the tokens before the first placed one; the tree already owns those before ``begin``."""
        key = RadixKey(req.origin_input_ids[: len(slots)], req.extra_key)
        priority = getattr(req, "priority", 0) or 0
        result = self.insert(InsertParams(key=key, value=slots.clone(), priority=priority))
        # Another request may have inserted some of them in the meantime.
        self.token_to_kv_pool_allocator.free(slots[begin : max(result.prefix_len, begin)])

    def _keep_copies(self, req: Req, state: KvState, length: int) -> None:
        """Store copies of the segments that an exact request keeps; its own slots go to the tree."""
        row = self.req_to_token_pool.req_to_token[req.req_pool_idx, :length].to(torch.int64, copy=True)
        for keep in state.request.keeps:
            end = self._end_of(req, keep, length)
            if keep not in state.kept and keep.start < end and end == (keep.end or end):
                self._keep_copy(req, state, keep, end, row)

    def _keep_copy(self, req: Req, state: KvState, keep: Keep, end: int, row: torch.Tensor) -> None:
        tokens = end - keep.start
        if self.store.find(self._key_of(req, state, keep, end)) is not None:
            return
        slots = self._allocate(tokens) if self.store.room_for(tokens) else None
        if slots is None:
            self.store.statistics.refused += 1
            return
        self.store.pending.append(Move(slots, row[keep.start : end].clone()))
        if not self._store(req, state, keep, end, slots):
            self.token_to_kv_pool_allocator.free(slots)

    def _store(self, req: Req, state: KvState, keep: Keep, end: int, slots: torch.Tensor) -> bool:
        """Move slots with an encoding to the store; return whether it accepted them."""
        key = self._key_of(req, state, keep, end)
        store = self.store
        if store.find(key) is not None:
            if keep.name in CONTEXTS:
                return False
            # A message with this id was created for a client that disconnected before the response.
            store.drop(key)
        if not store.room_for(end - keep.start):
            store.statistics.refused += 1
            return False
        tokens = (req.origin_input_ids + req.output_ids)[keep.start : end]
        use = self._storing or req.hive.use or self._anonymous
        record = self.accounting.stored(use, end - keep.start)
        shift = state.request.shift if state.request.choreographed else 0
        store.put(key, tokens, keep.start + shift, slots, record)
        state.kept.add(keep)
        return True

    def _key_of(self, req: Req, state: KvState, keep: Keep, end: int) -> SegmentKey:
        return state.key(keep.name, req.origin_input_ids + req.output_ids, keep.start, end)

    @staticmethod
    def _end_of(req: Req, keep: Keep, length: int) -> int:
        """Return the end index of a kept segment. The token that ended the request is not part of it."""
        if keep.end is not None:
            return min(keep.end, length)
        return min(len(req.origin_input_ids) + len(req.output_ids) - 1, length)

    # Eviction.

    def evict(self, params: EvictParams) -> EvictResult:
        wanted = params.num_tokens
        freed = self.store.free_placements(wanted) if wanted > 0 else 0
        if freed >= wanted:
            return EvictResult(num_tokens_evicted=freed)
        if not isinstance(self.evictable_leaves, LeafIndex):
            freed += self._evict_share(wanted - freed)
        result = super().evict(EvictParams(num_tokens=wanted - freed))
        freed += result.num_tokens_evicted
        if not isinstance(self.evictable_leaves, LeafIndex) and freed < wanted:
            freed += self._evict_oldest(wanted - freed)
        return EvictResult(num_tokens_evicted=freed)

    def _evict_share(self, wanted: int) -> int:
        """Under SGLang's policies, which do not know segments: evict the store's share of all evictable tokens."""
        evictable = super().evictable_size() + self.store.evictable
        return self._evict_oldest(wanted * self.store.evictable // evictable) if evictable else 0

    def _evict_oldest(self, wanted: int) -> int:
        freed = 0
        while freed < wanted and (segment := self.store.least_used()) is not None:
            freed += self.store.evict(segment)
        return freed

    def _trim(self, leaf: Any, wanted: int) -> None:
        if not isinstance(leaf, EncodedSegment):
            super()._trim(leaf, wanted)

    def _free(self, leaf: Any) -> int:
        return self.store.evict(leaf) if isinstance(leaf, EncodedSegment) else super()._free(leaf)

    def _segment_freed(self, segment: EncodedSegment) -> None:
        self.accounting.evicted(segment.hive, len(segment))

    def _segment_idle(self, segment: EncodedSegment, idle: bool) -> None:
        if isinstance(self.evictable_leaves, LeafIndex):
            if idle:
                self.evictable_leaves.add(segment)
            else:
                self.evictable_leaves.discard(segment)

    def evictable_size(self) -> int:
        in_store = self.segments.evictable if self.segments is not None else 0
        return int(super().evictable_size()) + in_store

    def protected_size(self) -> int:
        in_store = self.segments.leased + self._private if self.segments is not None else 0
        return int(super().protected_size()) + in_store

    # Accounting.

    def _admit(self, req: Req) -> Use | None:
        state = state_of(req)
        if state is None or state.lease is None:
            return super()._admit(req)
        # Indexed records must not change.
        indexed = [s for s, _ in state.lease.readers if s in self.evictable_leaves]
        for segment in indexed:
            self.evictable_leaves.discard(segment)
        use = super()._admit(req)
        for segment in indexed:
            self.evictable_leaves.add(segment)
        return use

    def _path(self, req: Req) -> list[tuple[NodeRecord, int]]:
        state = state_of(req)
        read = state.lease.readers if state is not None and state.lease is not None else []
        return [*super()._path(req), *((segment.hive, len(segment)) for segment, _ in read)]

    def _on_device_outside_tree(self) -> Collection[Any]:
        return [segment for segment in self.store if segment.on_device]

    def check_integrity(self) -> None:
        super().check_integrity()
        self.store.check_integrity()
        pool = self.token_to_kv_pool_allocator
        used = {slot for part in self.store.slots() for slot in part.tolist()}
        tree = [node.value for node in subtree(self.root_node)[1:] if node.value is not None]
        for what, others in (("the tree", tree), ("the free slots", [pool.free_pages, pool.release_pages])):
            if both := used.intersection(slot for part in others for slot in part.tolist()):
                raise IntegrityError(f"{len(both)} slots are both in the store and in {what}")

    def summary(self) -> dict[str, Any]:
        return {**super().summary(), "segments": self.store.summary()}
