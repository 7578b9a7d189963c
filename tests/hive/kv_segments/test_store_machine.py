"""The segment store under any order of calls, against a model of what every slot holds.

The store notes copies and makes none.  The model makes them late, and in between lets forward passes write to
whatever is free, so a copy that reads too late, writes too early, or is missing shows as a slot with the wrong token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hive.server.kv_segments.segment import EncodedSegment, HostCopy, Placement
from hive.server.kv_segments.store import Move
from tests.hive.kv_segments.pool import Content, Pool, contents, key, record, slots_of

SLOTS = 14
NAMES = st.sampled_from("abcd")
STARTS = st.integers(0, 2)
LENGTHS = st.integers(1, 4)


@dataclass(frozen=True, eq=False)
class Read:
    """A placement that a request reads."""

    segment: EncodedSegment
    placement: Placement


@dataclass(frozen=True, eq=False)
class Own:
    """A copy in slots of a request's own, which the store does not know."""

    slots: torch.Tensor
    contents: list[Content]


class StoreMachine(RuleBasedStateMachine):
    @initialize(capacity=st.sampled_from([4, 6, 9, SLOTS]), host_capacity=st.sampled_from([0, 4, 6, 30]))
    def start(self, capacity: int, host_capacity: int) -> None:
        self.pool = Pool(SLOTS, capacity, host_capacity)
        self.store = self.pool.store
        self.numbers: dict[EncodedSegment, int] = {}
        self.reads: list[Read] = []
        self.own: list[Own] = []
        self.stored_tokens = 0

    def _stored(self, segment: EncodedSegment, number: int) -> None:
        self.numbers[segment] = number
        self.stored_tokens += len(segment)

    # Encodings come and go.

    @rule(name=NAMES, length=LENGTHS, start=STARTS)
    def put(self, name: str, length: int, start: int) -> None:
        if self.store.find(key(name)) is not None:
            return
        segment = self.pool.encode(name, range(length), start)
        if segment is not None:
            self._stored(segment, self.pool.numbers)

    @rule(name=NAMES, start=STARTS)
    def put_a_copy(self, name: str, start: int) -> None:
        """Of a request's own slots, which it frees behind the copy that is only noted yet."""
        own = next((own for own in self.own if own.contents[0][1:] == (0, start)), None)
        if own is None or self.store.find(key(name)) is not None:
            return
        tokens = len(own.slots)
        slots = self.pool.allocate(tokens) if self.store.room_for(tokens) else None
        if slots is None:
            return
        self.store.pending.append(Move(slots, own.slots))
        if not self.store.room_for(tokens):
            self.pool.take_back(slots)
            return
        segment = self.store.put(key(name), range(tokens), start, slots, record())
        self._stored(segment, own.contents[0][0])
        self.own.remove(own)
        self.pool.take_back(own.slots)

    @rule(name=NAMES)
    def drop(self, name: str) -> None:
        there = self.store.find(key(name)) is not None
        assert self.store.drop(key(name)) == there
        assert self.store.find(key(name)) is None

    @rule()
    def evict(self) -> None:
        segment = self.store.least_used()
        assert (segment is not None) == bool(self.pool.indexed)
        if segment is not None:
            before = len(self.pool.free)
            freed = self.store.evict(segment)
            assert freed == len(self.pool.free) - before >= len(segment)

    @rule(wanted=st.integers(0, SLOTS))
    def free_placements(self, wanted: int) -> None:
        idle = sum(len(placement.slots) for _, _, placement in self.store.idle_placements())
        before = len(self.pool.free)
        freed = self.store.free_placements(wanted)
        assert freed == len(self.pool.free) - before
        assert freed >= min(wanted, idle)

    @rule(tokens=st.integers(1, SLOTS + 1))
    def room_for(self, tokens: int) -> None:
        read = self.store.leased
        assert self.store.room_for(tokens) == (read + tokens <= self.store.capacity)
        assert self.store.leased == read

    # Requests read.

    @rule(names=st.lists(NAMES, min_size=1, max_size=3), starts=st.lists(STARTS, min_size=3, max_size=3))
    def lease(self, names: list[str], starts: list[int]) -> None:
        """Several at once, as a request does: one may go for the copy of another."""
        found = [segment for name in names if (segment := self.store.find(key(name))) is not None]
        for segment, start in zip(found, starts, strict=False):
            placement = self.store.lease(segment, start)
            if placement is not None:
                self.reads.append(Read(segment, placement))

    @rule(names=st.lists(NAMES, min_size=1, max_size=3), starts=st.lists(STARTS, min_size=3, max_size=3))
    def lease_what_is_held(self, names: list[str], starts: list[int]) -> None:
        """What is held and finds no room as a placement can still be copied to slots of the request's own."""
        found = [segment for name in names if (segment := self.store.find(key(name))) is not None]
        with self.store.holding(found):
            for segment, start in zip(found, starts, strict=False):
                placement = self.store.lease(segment, start)
                if placement is not None:
                    self.reads.append(Read(segment, placement))
                    continue
                slots = self.pool.allocate(len(segment))
                if slots is not None:
                    self._copy_to(slots, segment, start)

    def _copy_to(self, slots: torch.Tensor, segment: EncodedSegment, start: int) -> None:
        delta = start - segment.own.start
        source: torch.Tensor | HostCopy | None = segment.own.slots if segment.on_device else segment.host
        assert source is not None
        self.store.pending.append(Move(slots, source, delta))
        self.own.append(Own(slots, contents(self.numbers[segment], len(segment), start)))

    @rule(name=NAMES, start=STARTS, data=st.data())
    def copy_the_end(self, name: str, start: int, data: st.DataObject) -> None:
        """To slots of a request's own, whose exact prefix has the beginning."""
        segment = self.store.find(key(name))
        if segment is None:
            return
        offset = data.draw(st.integers(0, len(segment) - 1))
        with self.store.holding([segment]):
            slots = self.pool.allocate(len(segment) - offset)
            if slots is None:
                return
            delta = start - segment.own.start
            if segment.on_device:
                move = Move(slots, segment.own.slots[offset:], delta)
            else:
                assert segment.host is not None
                move = Move(slots, segment.host, delta, offset)
            self.store.pending.append(move)
        self.own.append(Own(slots, contents(self.numbers[segment], len(segment), start)[offset:]))

    @precondition(lambda self: self.reads)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        read = self.reads.pop(data.draw(st.integers(0, len(self.reads) - 1)))
        self.store.release(read.segment, read.placement)

    @precondition(lambda self: self.own)
    @rule(data=st.data())
    def free_own(self, data: st.DataObject) -> None:
        self.pool.take_back(self.own.pop(data.draw(st.integers(0, len(self.own) - 1))).slots)

    # The engine goes on.

    @rule()
    def forward(self) -> None:
        self.pool.forward()
        assert not self.store.pending

    @precondition(lambda self: len(self.reads) > 2)
    @rule()
    def clear(self) -> None:
        self.pool.clear()
        self.reads, self.own = [], []
        self.pool.gone.clear()
        self.stored_tokens = 0
        assert len(self.store) == 0

    # What always holds.

    @invariant()
    def books_agree(self) -> None:
        self.store.check_integrity()
        assert self.store.evictable >= 0
        assert self.store.evictable + self.store.leased <= self.store.capacity
        assert self.store.on_host <= self.store.host_capacity
        on_device = sum(len(segment) for segment in self.store if segment.on_device)
        assert self.stored_tokens - sum(map(len, self.pool.gone)) == on_device

    @invariant()
    def every_slot_has_one_owner(self) -> None:
        owned = [*self.store.slots(), *(own.slots for own in self.own)]
        held = [slot for slots in owned for slot in slots.tolist()]
        assert sorted([*held, *self.pool.free]) == list(range(SLOTS))

    @invariant()
    def readers_are_counted(self) -> None:
        for segment in self.store:
            for placement in (segment.own, *segment.elsewhere.values()):
                assert placement.leases == sum(read.placement is placement for read in self.reads)
        there = {id(p) for s in self.store for p in (s.own, *s.elsewhere.values()) if len(p.slots)}
        assert all(id(read.placement) in there for read in self.reads)

    @invariant()
    def what_may_be_evicted_is_known(self) -> None:
        idle = {s for s in self.store if s.on_device and not s.own.leases and not s.dropped}
        assert self.pool.indexed == idle

    @invariant()
    def contents_are_right(self) -> None:
        """Of every placement, of every copy on the host, and of requests' own copies."""
        there = self.pool.copies.after(self.store.pending)
        for segment in self.store:
            number = self.numbers[segment]
            for placement in (segment.own, *segment.elsewhere.values()):
                wanted = contents(number, len(placement.slots), placement.start)
                assert [there.slots[slot] for slot in slots_of(placement)] == wanted
            if segment.host is not None:
                assert there.host[segment.host] == contents(number, len(segment), segment.own.start)
        for own in self.own:
            assert [there.slots[slot] for slot in own.slots.tolist()] == own.contents


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(
    max_examples=150,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
