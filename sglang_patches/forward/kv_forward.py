"""Work of a forward pass for the segment store: copies, shifted positions, virtual rows."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from hive.server.kv_segments.plan import Run, runs_of
from hive.server.kv_segments.request import KV_FIELD, KvRequest
from hive.server.kv_segments.segment import HostCopy
from hive.server.kv_segments.siblings import Siblings
from hive.server.kv_segments.slots import KvSlots
from hive.server.kv_segments.store import Move
from sglang_patches.forward.decode_rows import DecodeRows, to_device
from sglang_patches.forward.virtual_rows import VirtualRows
from sglang_patches.requests.kv_state import KvState
from sglang_patches.requests.request_state import KV_KEY, tag_of

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner

    from sglang_patches.cache.segmented_cache import SegmentedRadixCache


class KvForward:
    """Prepares each forward pass for the segment store of a scheduler process."""

    def __init__(
        self, runner: ModelRunner, cache: SegmentedRadixCache, slots: KvSlots, decode_rows: DecodeRows
    ) -> None:
        self._runner = runner
        self._cache = cache
        self._store = cache.store
        self._slots = slots
        self._decode_rows = decode_rows
        self.states: dict[str, KvState] = {}
        """Unfinished requests that use the segment store, by request id."""
        self._siblings = Siblings()

    # Arrival and end of requests and messages, in the scheduler.

    def arrived(self, req: Req) -> None:
        """Attach segment-store state to a request that uses the store."""
        wire = (req.sampling_params.custom_params or {}).get(KV_FIELD)
        if wire is None:
            return
        tenant = tag_of(req).get("tenant") or ""
        state = KvState.of(KvRequest.from_wire(wire), tenant, req.lora_id or "", req.origin_input_ids)
        req.hive.kv = self.states[req.rid] = state
        if state.request.calls > 1:
            self._siblings.arrived(state.request.group, state.request.calls, time.monotonic())
        req.customized_info = {**(req.customized_info or {}), KV_KEY: [state.counts]}

    def waiting_for_siblings(self, queue: Sequence[Req]) -> list[Req]:
        """Return queued requests that must wait until all requests of their list have arrived.

        Reads the clock, which several ranks could not do consistently; with the store there is only one rank.
        """
        if not len(self._siblings):
            return []
        now = time.monotonic()
        return [
            req
            for req in queue
            if (kv := getattr(req, "hive", None) and req.hive.kv)
            and self._siblings.waits(kv.request.group, now)
        ]

    def release(self, req: Req) -> None:
        """Release a finished request; one that never ran may still have a lease."""
        state: KvState | None = req.hive.kv
        if state is not None and self.states.get(req.rid) is state:
            del self.states[req.rid]
            self._cache.release_lease(state)

    def drop(self, tenant: str | None, messages: Sequence[str]) -> int:
        """Delete messages; return how many were in the store."""
        gone = {f"message:{message}" for message in messages}
        keys = [s.key for s in self._store if s.key.tenant == (tenant or "") and s.key.name in gone]
        return sum(self._store.drop(key) for key in keys)

    def forget(self) -> None:
        """Drop all encodings: the weights have changed."""
        for segment in self._store:
            self._store.drop(segment.key)

    # The forward pass.

    def run(self, batch: ForwardBatch, forward: Callable[[ForwardBatch], Any]) -> Any:
        """Run the forward pass of a batch: first the store's pending copies, then virtual rows and the batch.

        Args:
            batch: the batch to run.
            forward: the engine's own forward pass.
        """
        self._move()
        known = [self.states.get(rid) for rid in batch.rids or ()] if self.states else []
        if not any(known):
            return forward_rows(self._decode_rows, batch, forward)
        self._shift(batch, known)
        if not batch.forward_mode.is_extend():
            return forward(batch)
        rows = VirtualRows(self._runner, batch, known, forward, self._decode_rows)
        return rows.compute(self._runs(rows, known))

    def _move(self) -> None:
        pending, self._store.pending = self._store.pending, []
        for item in pending:
            if not isinstance(item, Move):
                item.target.kv = self._slots.read(item.source)
            elif isinstance(item.source, HostCopy):
                kv, part = item.source.kv, slice(item.offset, item.offset + len(item.target))
                self._slots.write(
                    dataclasses.replace(kv, keys=kv.keys[:, part], values=kv.values[:, part]),
                    item.target,
                    item.delta,
                )
            else:
                self._slots.copy(item.source, item.target, item.delta)

    def _runs(self, rows: VirtualRows, known: Sequence[KvState | None]) -> list[Run]:
        """Return the runs that must be computed before the own rows of requests that are new in the batch."""
        runs: list[Run] = []
        for row, state in enumerate(known):
            lease = state.lease if state is not None else None
            if state is None or lease is None or not lease.waiting:
                continue
            lease.waiting = False
            mine = lease.runs
            if state.corrector.probes and lease.placed:
                chosen = state.corrector.select(lease.placed, rows.deviation(row, lease))
                rows.take(row, chosen, lease.spare)
                mine = runs_of(lease.pieces, chosen)
                state.counts["placed"] -= len(chosen)
                state.counts["recomputed"] += len(chosen)
            runs += [rows.of(row, run) for run in mine]
        return runs

    def _shift(self, batch: ForwardBatch, known: Sequence[KvState | None]) -> None:
        """Shift the positions of tokens after the messages of a choreography, as its call requires."""
        shifts = [state.request.shift if state is not None else 0 for state in known]
        if not any(shifts):
            return
        of_tokens = torch.tensor(shifts, dtype=batch.positions.dtype)
        if batch.forward_mode.is_extend():
            of_tokens = of_tokens.repeat_interleave(torch.tensor(batch.extend_seq_lens_cpu))
        batch.positions = batch.positions + to_device(of_tokens, batch.positions.device)


def forward_rows(rows: DecodeRows, batch: ForwardBatch, forward: Callable[[ForwardBatch], Any]) -> Any:
    """Run the forward pass of a batch that reads no placed KV."""
    return rows.run(batch, forward) if rows.fits(batch) else forward(batch)
