"""A KV pool under the radix cache with a segment store, and what a model would leave in each slot of it.

As in :mod:`tests.sglang_patches.kv_pool` the pool, its allocators and the tree are SGLang's own and only the model is
missing.  The cache, the mover of KV and the virtual rows are Hive's; what replaces the model is that every slot holds
which token was computed there, at which position, and behind which contents of which other slots.  So KV that is not
what the model would have left there is found out, however it came about.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import torch
from sglang.srt.managers.schedule_batch import FINISH_ABORT
from sglang.srt.mem_cache.base_prefix_cache import InitLoadBackParams, MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixKey

from hive.server.eviction.policies import ENGINE_POLICIES
from hive.server.eviction.policies.density import DensitySettings
from hive.server.kv_segments.plan import Run
from hive.server.kv_segments.request import KV_FIELD, KvRequest
from hive.server.kv_segments.segment import EncodedSegment
from hive.server.kv_segments.slots import HostKv
from sglang_patches.cache.radix_cache import subtree
from sglang_patches.cache.segmented_cache import SegmentedRadixCache
from sglang_patches.forward import kv_forward
from sglang_patches.forward.decode_rows import DecodeRows
from sglang_patches.forward.kv_forward import KvForward
from sglang_patches.forward.virtual_rows import VirtualRows
from sglang_patches.requests.kv_state import KvState
from tests.sglang_patches.kv_pool import KvPool, PooledRequest, path_of

MOST_NEW = 4
"""Tokens that the scheduler sets aside for the output of a request that it admits."""


class Kv(NamedTuple):
    """What a slot holds."""

    adapter: str
    token: int
    position: int
    behind: int
    """A name for everything that the token saw, and at which positions."""


class Contents:
    """What each slot holds, as numbers, and what the mover of KV does with them."""

    def __init__(self, slots: int) -> None:
        self.numbers = torch.zeros(slots, dtype=torch.int64)
        self._known: list[Any] = [None]
        self._number: dict[Any, int] = {}

    def number(self, thing: Any) -> int:
        if thing not in self._number:
            self._number[thing] = len(self._known)
            self._known.append(thing)
        return self._number[thing]

    def at(self, slots: torch.Tensor) -> list[Kv]:
        return self.named(self.numbers[slots.long()])

    def named(self, numbers: torch.Tensor) -> list[Kv]:
        return [self._known[number] for number in numbers.tolist()]

    def put(self, slots: torch.Tensor, kv: Iterable[Kv]) -> None:
        self.numbers[slots.long()] = torch.tensor([self.number(one) for one in kv], dtype=torch.int64)

    def computed(
        self, adapter: str, tokens: Sequence[int], positions: Sequence[int], before: Iterable[Kv]
    ) -> list[Kv]:
        """What the model computes for tokens that see those ``before`` them, and each other."""
        behind = self.number(adapter)
        for kv in before:
            behind = self.number((behind, kv))
        found = []
        for token, position in zip(tokens, positions, strict=True):
            found.append(Kv(adapter, token, position, behind))
            behind = self.number((behind, found[-1]))
        return found

    # As hive.server.kv_segments.slots.KvSlots.

    def copy(self, source: torch.Tensor, target: torch.Tensor, delta: int) -> None:
        read, written = source.tolist(), target.tolist()
        assert read == written or not set(read) & set(written), "a copy reads what it writes"
        assert len(set(written)) == len(written) == len(read)
        self.put(target, self._turned(self.at(source), delta))

    def read(self, slots: torch.Tensor) -> HostKv:
        numbers = self.numbers[slots][None, :, None, None].clone()
        return HostKv(numbers, numbers)

    def write(self, host: HostKv, target: torch.Tensor, delta: int) -> None:
        assert host.keys.shape[1] == len(target)
        self.put(target, self._turned(self.named(host.keys.flatten()), delta))

    @staticmethod
    def _turned(kv: Sequence[Kv], delta: int) -> list[Kv]:
        return [one._replace(position=one.position + delta) for one in kv]


class SimulatedRows(VirtualRows):
    """Virtual rows whose passes leave in slots what the model would."""

    def _fits(self, part: Sequence[Run]) -> bool:
        return False  # the batch's own rows are simulated elsewhere

    def _pass(self, part: Sequence[Run], written: Sequence[bool]) -> None:
        assert len(part) <= self._max_rows
        assert sum(map(len, part)) <= self._max_tokens
        contents: Contents = self._runner.contents  # type: ignore[attr-defined]
        self._fresh: list[Kv] = []
        for run, kept in zip(part, written, strict=True):
            state = self._states[run.row]
            assert state is not None
            assert state.lease is not None
            slots = self._table[self._batch.req_pool_indices[run.row]].long()
            positions = range(run.position, run.position + len(run))
            before = contents.at(slots[: run.start])
            kv = contents.computed(state.adapter, state.tokens[run.start : run.end], positions, before)
            self._fresh += kv
            if kept:
                into = slots[run.start : run.end]
                assert set(into.tolist()) <= set(state.lease.private.tolist()), (
                    "a row writes to others' slots"
                )
                contents.put(into, kv)

    def _values(self, part: Sequence[Run], written: Sequence[bool]) -> torch.Tensor:
        self._pass(part, written)
        return values_of(self._fresh)


def values_of(kv: Iterable[Kv]) -> torch.Tensor:
    """Values of tokens at the check layer, [tokens, 1, 1]: other ones behind other contents."""
    return torch.tensor([float(one.behind % 997) for one in kv])[:, None, None]


class SegmentedRequest(PooledRequest):
    """What the cache with segments reads of SGLang's requests besides, under its names."""

    def __init__(
        self,
        rid: str,
        prompt: Sequence[int],
        kv: KvRequest | None,
        *,
        tenant: str = "",
        adapter: str = "",
        agent: str | None = None,
        session: str | None = None,
    ) -> None:
        super().__init__(rid, prompt, agent, session)
        custom = {"hive": {"tenant": tenant}, **({KV_FIELD: kv.to_wire()} if kv is not None else {})}
        self.sampling_params = SimpleNamespace(custom_params=custom)
        self.tenant, self.adapter = tenant, adapter
        self.lora_id = adapter or None
        self.extra_key = adapter or None
        self.customized_info: dict[str, Any] | None = None
        self.finished_reason: Any = None
        self.to_finish: Any = None
        self.already_computed = 0
        self.retracted_stain = False
        self.logprobs_from: int | None = None
        """Index of the first token whose log-probability is asked for: it is computed."""

    @property
    def full_untruncated_fill_ids(self) -> array[int]:
        return self.tokens

    @property
    def state(self) -> KvState | None:
        return self.hive.kv

    @property
    def prefilled(self) -> bool:
        return self.prefilled_to >= len(self.origin_input_ids)

    def position(self, index: int) -> int:
        """Where one of its tokens is."""
        if self.state is None or not self.state.request.choreographed:
            return index
        for span in self.state.request.spans:
            if span.start <= index < span.end:
                return span.position + index - span.start
        return index + self.state.request.shift


class SegmentedPool(KvPool):
    """See the module.  Requests arrive, are admitted to the next batch, and :meth:`step` runs it."""

    def __init__(
        self,
        size: int,
        policy: str = "density",
        *,
        capacity: int,
        host: int = 0,
        most_rows: int = 3,
        most_tokens: int = 7,
        **options: Any,
    ) -> None:
        self._capacity, self._host = capacity, host
        super().__init__(size, policy, **options)
        self.contents = Contents(size + 1)
        runner: Any = SimpleNamespace(
            attn_backend=None,
            contents=self.contents,
            req_to_token_pool=self.table,
            server_args=SimpleNamespace(chunked_prefill_size=most_tokens, enable_lora=False),
            max_running_requests=most_rows,
            war_fastpath_read_done_event=None,
            token_to_kv_pool=SimpleNamespace(get_value_buffer=lambda layer: _Values(self.contents)),
        )
        self.kv = KvForward(runner, self.cache, self.contents, DecodeRows(0, 0))  # type: ignore[arg-type]
        self.waiting: list[SegmentedRequest] = []
        self.batch: list[tuple[SegmentedRequest, int]] = []
        """Admitted requests that have not run yet, and the index up to which they are to be computed."""
        self.promised = 0
        """Tokens that are set aside for the requests of the batch."""
        self.made: dict[tuple[str, str, str], list[Kv]] = {}
        """What is in messages as they were made, by tenant, adapter and name."""
        self._first_seen: dict[int, list[Kv]] = {}
        """What was in encodings, by their ids."""

    def _cache(self, policy: str, density: DensitySettings | None) -> Any:
        if policy in ENGINE_POLICIES:
            self.params.eviction_policy = policy
        return SegmentedRadixCache(
            self.params,
            capacity=self._capacity,
            host_capacity=self._host,
            agents=self.agents,
            policy=self._policy(policy, density),
        )

    # What the scheduler does.

    def arrive(self, prompt: Sequence[int], kv: KvRequest | None = None, **who: Any) -> SegmentedRequest:
        """A request waits from now on."""
        self.requests += 1
        self.agents.arrived(who.get("agent"), who.get("session"), len(prompt))
        req = SegmentedRequest(str(self.requests), prompt, kv, **who)
        req.hive.arrived_at = self.now
        self.kv.arrived(req)
        self.waiting.append(req)
        return req

    def match(self, tokens: Sequence[int], req: PooledRequest | None = None) -> Any:
        extra_key = req.extra_key if req is not None else None
        limit = max(0, len(tokens) - 1)
        if isinstance(req, SegmentedRequest) and req.logprobs_from is not None:
            limit = min(limit, req.logprobs_from)
        key = RadixKey(array("q", tokens), extra_key, limit=limit)
        return self.cache.match_prefix(MatchPrefixParams(key=key, req=req))

    def room(self) -> int:
        """Tokens that may still be admitted."""
        return int(self.allocator.available_size() + self.cache.evictable_size() - self.promised)

    def enter(self, req: SegmentedRequest, chunk: int | None = None, *, runs: bool = True) -> bool:
        """Admit a request to the next batch; False where there is no room, and where it ``runs`` not after all."""
        tokens = req.tokens
        match = self.match(tokens, req)
        req.prefix_indices, req.last_node = match.device_indices, match.last_device_node
        req.cache_protected_len = len(req.prefix_indices)
        total = len(tokens) - len(req.prefix_indices) + MOST_NEW + 1
        if total >= self.room():
            return False
        found = req.last_node
        self.cache.inc_lock_ref(found)
        admitted = total < self.room() and self._load(req, match) and runs
        if admitted:
            upto = len(tokens) if chunk is None else min(len(tokens), len(req.prefix_indices) + chunk)
            self.cache.inc_lock_ref(req.last_node)
            self.waiting.remove(req)
            self.batch.append((req, upto))
            self.promised += upto - len(req.prefix_indices) + MOST_NEW
        self.cache.dec_lock_ref(found)
        return admitted

    def _load(self, req: SegmentedRequest, match: Any) -> bool:
        if match.host_hit_length:
            loaded, req.last_node = self.cache.init_load_back(
                InitLoadBackParams(
                    best_match_node=match.best_match_node, host_hit_length=match.host_hit_length, req=req
                )
            )
            assert len(loaded) in (0, match.host_hit_length)
            req.prefix_indices = torch.cat([req.prefix_indices, loaded])
            req.cache_protected_len = len(req.prefix_indices)
        return True

    def step(self) -> None:
        """Run what was admitted."""
        batch, self.batch, self.promised = self.batch, [], 0
        if not batch:
            return
        for req, upto in batch:
            begin = len(req.prefix_indices)
            if req.req_pool_idx is None:
                assert self.table.alloc([req]) is not None
                self.running.append(req)
                req.matched = begin
            self.table.write((req.req_pool_idx, slice(0, begin)), req.prefix_indices.to(torch.int32))
            req.kv_committed_len = begin
            self._grow(req, upto)
        self._forward([(req, len(req.prefix_indices), upto) for req, upto in batch], extend=True)
        for req, upto in batch:
            req.prefilled_to = upto
            whole = upto == len(req.tokens)
            if whole and req.to_finish is not None:
                self.finish(req, abort=req.to_finish)
                continue
            if whole:
                req.output_ids.append(900 + len(req.output_ids))
            req.store(self.cache, whole)
            if not whole:
                assert req.prefix_indices.tolist() == self._row(req, upto).tolist()

    def go_on(self, req: SegmentedRequest, tokens: int) -> bool:
        """Put the next chunk of a prefill into the next batch."""
        upto = min(len(req.tokens), req.prefilled_to + tokens)
        if upto - req.prefilled_to + MOST_NEW >= self.room():
            return False
        self.batch.append((req, upto))
        self.promised += upto - req.prefilled_to
        return True

    def draw(self, reqs: Sequence[SegmentedRequest], *, late: bool = False) -> None:
        """A decode step; a ``late`` one is that which overlap scheduling runs for requests that are over by then."""
        reqs = [req for req in reqs if req.kv_committed_len < len(req.tokens)]
        rows = []
        for req in reqs:
            if self.room() < 1:
                break
            at = req.kv_committed_len
            self._grow(req, at + 1)
            rows.append((req, at, at + 1))
        if rows:
            self._forward(rows, extend=False)
            for req, _, _ in rows if not late else ():
                req.output_ids.append(900 + len(req.output_ids))

    def finish(  # type: ignore[override]
        self, req: SegmentedRequest, insert: bool = True, *, abort: FINISH_ABORT | None = None
    ) -> None:
        """A request is over; ``insert`` is False where a chunk of its prefill is the last one."""
        req.finished_reason = abort
        if insert and abort is None:
            self._note_messages(req)
        super().finish(req, insert)
        self.kv.release(req)

    def retract(self, req: SegmentedRequest) -> None:  # type: ignore[override]
        super().retract(req)
        req.req_pool_idx, req.retracted_stain, req.already_computed = None, True, 0
        self.waiting.append(req)

    def leave(self, req: SegmentedRequest) -> None:
        """A waiting request is aborted."""
        self.waiting.remove(req)
        self.kv.release(req)

    def serve(
        self, prompt: Sequence[int], kv: KvRequest | None = None, *, new: int = 1, **who: Any
    ) -> SegmentedRequest:
        """A request from its arrival to its end; so many tokens are drawn."""
        req = self.arrive(prompt, kv, **who)
        assert self.enter(req), "the pool is too small"
        self.step()
        while len(req.output_ids) < new:
            self.draw([req])
        self.check()
        self.finish(req)
        self.check()
        return req

    def flush(self) -> None:
        assert not self.waiting
        assert not self.batch
        super().flush()
        self.contents.numbers.zero_()

    # What the model and the pool do.

    def _row(self, req: SegmentedRequest, upto: int) -> torch.Tensor:
        row: torch.Tensor = self.table.req_to_token[req.req_pool_idx, :upto].long()
        return row

    def _grow(self, req: SegmentedRequest, upto: int) -> None:
        held = req.kv_committed_len
        short = upto - held - self.allocator.available_size()
        if short > 0:
            self.evict(short)
        fresh = self.allocator.alloc(upto - held)
        assert fresh is not None, "the scheduler has promised more than there is"
        self.table.write((req.req_pool_idx, slice(held, upto)), fresh.to(torch.int32))
        req.kv_committed_len = upto

    def _forward(self, rows: Sequence[tuple[SegmentedRequest, int, int]], *, extend: bool) -> None:
        lengths = [end - start for _, start, end in rows]
        batch: Any = SimpleNamespace(
            rids=[req.rid for req, _, _ in rows],
            forward_mode=SimpleNamespace(is_extend=lambda: extend),
            req_pool_indices=torch.tensor([req.req_pool_idx for req, _, _ in rows]),
            positions=torch.cat([torch.arange(start, end) for _, start, end in rows]),
            extend_seq_lens_cpu=lengths,
        )
        with mock.patch.object(kv_forward, "VirtualRows", SimulatedRows):
            self.kv.run(batch, lambda _: None)
        assert self.cache.store.pending == []
        positions = batch.positions.split(lengths)
        for (req, start, end), of_row in zip(rows, positions, strict=True):
            slots, tokens = self._row(req, end), req.tokens[start:end]
            before = self.contents.at(slots[:start])
            self.contents.put(
                slots[start:], self.contents.computed(req.adapter, tokens, of_row.tolist(), before)
            )

    def _note_messages(self, req: SegmentedRequest) -> None:
        for keep in req.state.request.keeps if req.state is not None else ():
            if keep.name.startswith("message:"):
                end = keep.end or len(req.tokens) - 1
                kv = self.contents.at(self._row(req, end)[keep.start :])
                self.made[req.tenant, req.adapter, keep.name] = kv

    # What must always hold.

    def check(self) -> None:
        self.cache.check_integrity()
        self._check_slots()
        self._check_tree()
        self._check_store()
        for req in self.running:
            if req.req_pool_idx is not None and not any(req is entering for entering, _ in self.batch):
                self.check_row(req)
        if not self.running and not self.batch and not self.waiting:
            assert self.cache.store.leased == 0
            assert self.cache._private == 0
            assert self.kv.states == {}

    def _check_slots(self) -> None:
        """As SGLang's invariant checker does, and that each slot has one owner."""
        nodes = [node for node in subtree(self.cache.root_node)[1:] if node.value is not None]
        owners: dict[str, list[int]] = {
            "free": [*self.allocator.free_pages.tolist(), *self.allocator.release_pages.tolist()],
            "tree": [slot for node in nodes for slot in node.value.tolist()],
            "store": [slot for part in self.cache.store.slots() for slot in part.tolist()],
        }
        uncached = 0
        for req in self.running:
            uncached += req.kv_committed_len - req.cache_protected_len
            owners[f"of {req.rid}"] = self._row(req, req.kv_committed_len)[req.cache_protected_len :].tolist()
        for req in self._known():
            if req.state is not None and req.state.lease is not None:
                owners[f"leased by {req.rid}"] = req.state.lease.private.tolist()
        owned = sorted(slot for slots in owners.values() for slot in slots)
        assert owned == list(range(1, self.size + 1)), owners
        held = self.cache.evictable_size() + self.cache.protected_size()
        assert self.allocator.available_size() + held + uncached == self.size

    def _known(self) -> list[SegmentedRequest]:
        reqs = [*self.running, *self.waiting, *(req for req, _ in self.batch)]
        return list({id(req): req for req in reqs}.values())

    def _check_tree(self) -> None:
        """No KV is in the tree but what a prefill of the node's path leaves."""
        for top in self.cache.root_node.children.values():
            adapter = top.key.extra_key or ""
            for node in subtree(top):
                tokens = path_of(node)
                exact = self.contents.computed(adapter, tokens, range(len(tokens)), ())
                assert self.contents.at(node.value) == exact[-len(node.value) :], "the tree has other KV"

    def _check_store(self) -> None:
        """Encodings have the tokens that they say, where they say, and never change."""
        pending = self.cache.store.pending
        if pending:
            return
        for segment in self.cache.store:
            placements = [*segment.elsewhere.values(), *([segment.own] if segment.on_device else [])]
            versions = [(placement.start, self.contents.at(placement.slots)) for placement in placements]
            if segment.host is not None:
                versions.append((segment.own.start, self.contents.named(segment.host.kv.keys.flatten())))
            for start, kv in versions:
                self._check_version(segment, start, kv)

    def _check_version(self, segment: EncodedSegment, start: int, kv: Sequence[Kv]) -> None:
        assert [one.token for one in kv] == list(segment.tokens)
        assert [one.position for one in kv] == list(range(start, start + len(segment)))
        assert {one.adapter for one in kv} == {segment.key.adapter}
        framed = [one._replace(position=one.position - start + segment.own.start) for one in kv]
        assert self._first_seen.setdefault(segment.id, framed) == framed, "an encoding has changed"
        if segment.key.name.startswith("message:"):
            made = self.made[segment.key.tenant, segment.key.adapter, segment.key.name]
            assert segment.dropped or framed == made, "it is not the message that was made"
        if segment.key.name.startswith("standalone:"):
            exact = self.contents.computed(segment.key.adapter, segment.tokens, range(len(segment)), ())
            assert framed == exact

    def check_row(self, req: SegmentedRequest) -> None:
        """What a request sees is what was placed for it, and for the rest what a prefill computes behind that."""
        row = self._row(req, req.kv_committed_len)
        kv, tokens = self.contents.at(row), req.tokens
        placed = self._placed(req, row)
        behind = self.contents.number(req.adapter)
        for index, one in enumerate(kv):
            position = req.position(index)
            if index in placed:
                assert one == placed[index]._replace(position=position), "placed KV is another's"
                assert (one.adapter, one.token) == (req.adapter, tokens[index])
            else:
                assert one == Kv(req.adapter, tokens[index], position, behind), f"token {index} has other KV"
            behind = self.contents.number((behind, one))

    def _placed(self, req: SegmentedRequest, row: torch.Tensor) -> dict[int, Kv]:
        """What was placed for a request and not computed again, in the frame of its encoding, by index."""
        lease = req.state.lease if req.state is not None else None
        if lease is None:
            return {}
        spare = set(lease.spare.tolist())
        found = {}
        for piece in lease.pieces:
            if piece.source is None:
                continue
            assert piece.source.key.tenant == req.tenant
            for at in range(len(piece)):
                index = piece.start + at
                again = any(run.start <= index < run.end for run in lease.runs) or int(row[index]) in spare
                if not again:
                    # One that was gone before it was looked at is known by its tokens alone.
                    seen = self._first_seen.get(piece.source.id)
                    found[index] = (
                        seen[piece.offset + at] if seen else self.contents.at(row[index : index + 1])[0]
                    )
        return found

    def exact(self, req: SegmentedRequest) -> list[Kv]:
        """What a full prefill of all tokens of a request leaves."""
        positions = [req.position(index) for index in range(req.kv_committed_len)]
        return self.contents.computed(req.adapter, req.tokens[: req.kv_committed_len], positions, ())

    def seen(self, req: SegmentedRequest) -> list[Kv]:
        """What a running request sees."""
        return self.contents.at(self._row(req, req.kv_committed_len))


class _Values:
    """The values of a layer, by slots."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents

    def __getitem__(self, slots: torch.Tensor) -> torch.Tensor:
        return values_of(self._contents.at(slots))
