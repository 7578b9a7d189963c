"""The segment store, one behaviour at a time; see test_store_machine for all of them in any order."""

from __future__ import annotations

from array import array

import pytest
import torch

from hive.server.integrity import IntegrityError
from hive.server.kv_segments.segment import EncodedSegment, digest
from hive.server.kv_segments.store import Move, Save
from tests.hive.kv_segments.pool import Pool, contents, key, record, slots_of


def encoded(pool: Pool, name: str, tokens: int, start: int = 0) -> EncodedSegment:
    segment = pool.encode(name, range(tokens), start)
    assert segment is not None
    return segment


def test_an_encoding_is_found_by_tenant_adapter_and_name() -> None:
    pool = Pool(8, 8)
    segment = encoded(pool, "a", 3)
    assert pool.store.find(key("a")) is segment
    assert segment.tokens == array("q", [0, 1, 2])
    assert [pool.store.find(key("a", "other")), pool.store.find(key("a", "t", "lora"))] == [None, None]
    assert len(pool.store) == 1
    assert segment.id < 0


def test_tokens_are_named_by_what_they_are() -> None:
    assert digest([1, 2, 3]) == digest(array("q", [1, 2, 3]))
    assert len({digest(tokens) for tokens in ([], [0], [0, 0], [1, 2], [2, 1], [256], [1, 0])}) == 7


@pytest.mark.parametrize(("name", "tokens", "slots"), [("a", 2, 2), ("b", 2, 3), ("b", 0, 0)])
def test_what_cannot_be_stored_is_refused(name: str, tokens: int, slots: int) -> None:
    pool = Pool(8, 8)
    encoded(pool, "a", 2)
    with pytest.raises(ValueError, match="cannot be stored"):
        pool.store.put(key(name), range(tokens), 0, torch.arange(4, 4 + slots), record())


def test_in_its_frame_an_encoding_is_read_without_a_copy() -> None:
    pool = Pool(8, 8)
    segment = encoded(pool, "a", 3, start=5)
    first, second = pool.store.lease(segment, 5), pool.store.lease(segment, 5)
    assert first is second is segment.own
    assert (first.leases, pool.store.leased, pool.store.evictable) == (2, 3, 0)
    assert pool.store.pending == []
    assert pool.store.statistics.placed_tokens == 6
    assert pool.store.statistics.copied_tokens == 0


def test_elsewhere_it_is_copied_once_for_all_readers() -> None:
    pool = Pool(8, 8)
    segment = encoded(pool, "a", 3, start=5)
    first, second = pool.store.lease(segment, 1), pool.store.lease(segment, 1)
    assert first is not None
    assert first is second
    (move,) = pool.store.pending
    assert isinstance(move, Move)
    assert (move.delta, move.offset) == (-4, 0)
    pool.forward()
    assert [pool.copies.slots[slot] for slot in slots_of(first)] == contents(1, 3, 1)
    assert pool.store.statistics.copied_tokens == 3
    pool.store.check_integrity()


def test_a_copy_without_a_reader_stays_until_its_room_is_needed() -> None:
    pool = Pool(8, 8)
    segment = encoded(pool, "a", 3)
    placement = pool.store.lease(segment, 9)
    assert placement is not None
    pool.store.release(segment, placement)
    assert pool.store.lease(segment, 9) is placement
    assert pool.store.free_placements(3) == 0
    pool.store.release(segment, placement)
    assert pool.store.free_placements(1) == 3
    assert pool.store.find(key("a")) is segment
    assert pool.store.lease(segment, 9) is not placement


def test_of_idle_copies_the_longest_unused_goes_first() -> None:
    pool = Pool(16, 16)
    segment = encoded(pool, "a", 2)
    for start in (1, 2, 3, 1):
        placement = pool.store.lease(segment, start)
        assert placement is not None
        pool.store.release(segment, placement)
    assert [placement.start for _, _, placement in pool.store.idle_placements()] == [2, 3, 1]
    assert pool.store.free_placements(3) == 4
    assert list(segment.elsewhere) == [1]


def test_more_releases_than_leases_are_found() -> None:
    pool = Pool(8, 8)
    segment = encoded(pool, "a", 2)
    with pytest.raises(IntegrityError, match="more often"):
        pool.store.release(segment, segment.own)


def test_copies_go_for_a_new_encoding_before_encodings_do() -> None:
    pool = Pool(16, 6)
    first, second = encoded(pool, "a", 2), encoded(pool, "b", 2)
    placement = pool.store.lease(second, 7)
    assert placement is not None
    pool.store.release(second, placement)
    encoded(pool, "c", 2)
    assert (first.on_device, second.on_device, second.elsewhere) == (True, True, {})
    encoded(pool, "d", 2)
    assert pool.store.find(key("a")) is None
    assert pool.gone == [first]
    assert pool.store.statistics.evicted == 1


def test_what_was_read_elsewhere_counts_as_used() -> None:
    pool = Pool(16, 8)
    first, second = encoded(pool, "a", 2), encoded(pool, "b", 2)
    placement = pool.store.lease(first, 4)
    assert placement is not None
    third = pool.store.lease(second, 0)
    assert third is not None
    pool.store.release(second, third)
    # The copy is there already: this reads it, and nothing else of the encoding.
    assert pool.store.lease(first, 4) is placement
    assert pool.store.least_used() is second


def test_what_is_read_is_never_in_the_way_of_itself() -> None:
    pool = Pool(16, 5)
    segment = encoded(pool, "a", 3)
    assert pool.store.lease(segment, 1) is None
    assert segment.on_device
    assert segment.leases == 0
    assert pool.store.statistics.refused == 1
    assert not pool.store.room_for(6)
    assert pool.store.lease(segment, 0) is segment.own
    assert not pool.store.room_for(3)
    assert pool.store.room_for(2)


def test_what_is_read_cannot_be_evicted() -> None:
    pool = Pool(8, 8)
    segment = encoded(pool, "a", 2)
    pool.store.lease(segment, 0)
    assert pool.indexed == set()
    assert pool.store.least_used() is None
    with pytest.raises(IntegrityError, match="cannot be evicted"):
        pool.store.evict(segment)


def test_a_dropped_encoding_stays_for_its_readers_alone() -> None:
    pool = Pool(16, 16)
    segment = encoded(pool, "a", 2)
    own, copy = pool.store.lease(segment, 0), pool.store.lease(segment, 5)
    assert own is not None
    assert copy is not None
    assert pool.store.drop(key("a"))
    assert not pool.store.drop(key("a"))
    assert list(pool.store) == [segment]
    # A new one under the name is another.
    assert encoded(pool, "a", 3) is not segment
    pool.store.release(segment, own)
    assert pool.gone == [segment]
    assert len(pool.free) == 16 - 3 - 2
    pool.store.release(segment, copy)
    assert len(pool.free) == 16 - 3
    assert segment not in list(pool.store)
    pool.store.check_integrity()


def test_an_evicted_encoding_stays_for_readers_elsewhere() -> None:
    pool = Pool(16, 16)
    segment = encoded(pool, "a", 2)
    copy = pool.store.lease(segment, 5)
    assert copy is not None
    assert pool.store.evict(segment) == 2
    assert pool.store.find(key("a")) is None
    pool.forward()
    assert [pool.copies.slots[slot] for slot in slots_of(copy)] == contents(1, 2, 5)
    pool.store.release(segment, copy)
    assert len(pool.free) == 16


# The host.


def test_an_encoding_comes_back_from_the_host_in_the_frame_it_is_wanted_in() -> None:
    pool = Pool(8, 8, 4)
    segment = encoded(pool, "a", 3, start=2)
    assert pool.store.evict(segment) == 3
    assert (len(pool.free), pool.store.on_host) == (8, 3)
    assert pool.store.find(key("a")) is segment
    placement = pool.store.lease(segment, 6)
    assert placement is not None
    save, move = pool.store.pending
    assert isinstance(save, Save)
    assert isinstance(move, Move)
    assert move.source is save.target is segment.host
    assert move.delta == 4
    pool.forward()
    assert [pool.copies.slots[slot] for slot in slots_of(placement)] == contents(1, 3, 6)


def test_on_the_host_the_longest_unused_makes_room() -> None:
    pool = Pool(16, 16, 4)
    segments = [encoded(pool, name, 2) for name in "abc"]
    for segment in segments[:2]:
        pool.store.evict(segment)
    placement = pool.store.lease(segments[0], 3)
    assert placement is not None
    pool.store.release(segments[0], placement)
    pool.store.evict(segments[2])
    assert [pool.store.find(key(name)) is not None for name in "abc"] == [True, False, True]
    assert pool.store.on_host == 4


def test_what_goes_with_its_last_copy_is_counted_as_freed() -> None:
    pool = Pool(16, 16, 3)
    first, second = encoded(pool, "a", 3), encoded(pool, "b", 2)
    pool.store.evict(first)
    placement = pool.store.lease(first, 3)
    assert placement is not None
    pool.store.release(first, placement)
    before = len(pool.free)
    # The first one has to leave the host for it, and its copy on the device is of no use without.
    assert pool.store.evict(second) == 5 == len(pool.free) - before


def test_what_the_host_cannot_hold_goes() -> None:
    pool = Pool(8, 8, 2)
    small, large = encoded(pool, "a", 2), encoded(pool, "b", 3)
    pool.store.evict(small)
    pool.store.evict(large)
    assert [pool.store.find(key("a")), pool.store.find(key("b"))] == [small, None]


def test_what_is_loaded_keeps_its_place_on_the_host() -> None:
    pool = Pool(14, 6, 4)
    first = encoded(pool, "a", 3)
    pool.store.evict(first)
    encoded(pool, "b", 4)
    # There is only room where b was, and on the host only where a is.
    placement = pool.store.lease(first, 1)
    assert placement is not None
    assert [pool.store.find(key("a")), pool.store.find(key("b"))] == [first, None]
    pool.forward()
    assert [pool.copies.slots[slot] for slot in slots_of(placement)] == contents(1, 3, 1)
    assert first.host is not None
    assert first.host.leases == 0


# Several at once.


def test_of_those_found_together_one_may_go_for_another() -> None:
    pool = Pool(14, 4)
    first, second = encoded(pool, "a", 2), encoded(pool, "b", 2)
    assert pool.store.lease(first, 5) is not None
    assert pool.store.find(key("b")) is None
    assert pool.store.lease(second, 3) is None


def test_what_is_held_stays_where_it_is() -> None:
    pool = Pool(14, 4, 2)
    saved = encoded(pool, "c", 2)
    pool.store.evict(saved)
    first, second = encoded(pool, "a", 2), encoded(pool, "b", 2)
    with pool.store.holding([saved, first, second, first]):
        assert pool.store.leased == 4
        assert pool.store.lease(first, 5) is None
        assert pool.store.lease(saved, 5) is None
        assert first.on_device
        assert second.on_device
        assert saved.host is not None
    assert pool.indexed == {first, second}
    assert pool.store.evict(first) == 2
    assert pool.store.find(key("c")) is None


def test_what_is_dropped_while_it_is_held_goes_in_the_end() -> None:
    pool = Pool(8, 8)
    segment = encoded(pool, "a", 2)
    with pool.store.holding([segment]):
        pool.store.drop(key("a"))
        assert len(pool.free) == 6
    assert len(pool.free) == 8
    assert list(pool.store) == []


# Books.


def test_nothing_is_left_when_the_pool_is_cleared() -> None:
    pool = Pool(12, 12, 12)
    saved, kept = encoded(pool, "a", 2), encoded(pool, "b", 3)
    pool.store.evict(saved)
    pool.store.lease(kept, 4)
    pool.clear()
    assert list(pool.store) == []
    assert (pool.store.pending, pool.indexed, pool.store.slots()) == ([], set(), [])
    assert (pool.store.leased, pool.store.on_host, pool.store.evictable) == (0, 0, 0)
    pool.store.check_integrity()


def test_the_summary_says_what_there_is() -> None:
    pool = Pool(16, 12, 4)
    first, second = encoded(pool, "a", 3), encoded(pool, "b", 2)
    pool.store.evict(first)
    pool.store.lease(second, 0)
    pool.store.lease(second, 4)
    summary = pool.store.summary()
    wanted = {"segments": 2, "tokens": 4, "capacity_tokens": 12, "leased_tokens": 4, "host_tokens": 3}
    counted = {"stored": 2, "evicted": 1, "placed_tokens": 4, "copied_tokens": 2, "refused": 0}
    assert summary == {**wanted, **counted, "hits": 0}


@pytest.mark.parametrize(
    "fault", ["slots", "leases", "host", "shared slot", "nowhere", "dropped", "capacity"]
)
def test_wrong_books_are_found(fault: str) -> None:
    pool = Pool(16, 16, 4)
    first, second = encoded(pool, "a", 2), encoded(pool, "b", 2)
    pool.store.check_integrity()
    match fault:
        case "slots":
            first.own.slots = first.own.slots[:1]
        case "leases":
            first.own.leases = 1
        case "host":
            pool.store.evict(first)
            first.host = None
        case "shared slot":
            first.own.slots = second.own.slots
        case "nowhere":
            first.own.slots = first.own.slots[:0]
        case "dropped":
            first.dropped = True
        case "capacity":
            pool.store.capacity = 3
    with pytest.raises(IntegrityError):
        pool.store.check_integrity()
