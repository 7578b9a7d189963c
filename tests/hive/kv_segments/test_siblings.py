"""Lists of calls that run as one batch."""

from __future__ import annotations

from hive.server.kv_segments.siblings import PATIENCE_S, Siblings


def test_a_list_waits_until_its_last_call_is_here() -> None:
    siblings = Siblings()
    for at in range(3):
        siblings.arrived("a", 4, at * 1e-4)
        assert siblings.waits("a", at * 1e-4)
    siblings.arrived("a", 4, 4e-4)
    assert not siblings.waits("a", 4e-4)
    assert not len(siblings)


def test_lists_do_not_wait_for_each_other() -> None:
    siblings = Siblings()
    siblings.arrived("a", 2, 0.0)
    siblings.arrived("b", 2, 0.0)
    siblings.arrived("b", 2, 0.0)
    assert siblings.waits("a", 0.0)
    assert not siblings.waits("b", 0.0)
    assert not siblings.waits("unknown", 0.0)


def test_a_call_that_never_comes_is_not_waited_for_for_long() -> None:
    siblings = Siblings()
    siblings.arrived("a", 2, 1.0)
    assert siblings.waits("a", 1.0 + PATIENCE_S / 2)
    assert not siblings.waits("a", 1.0 + PATIENCE_S)
    assert not len(siblings)


def test_one_that_comes_too_late_waits_no_longer_than_the_first_did() -> None:
    siblings = Siblings()
    siblings.arrived("a", 2, 1.0)
    assert not siblings.waits("a", 2.0)
    siblings.arrived("a", 2, 2.0)
    assert siblings.waits("a", 2.0)
    assert not siblings.waits("a", 2.0 + PATIENCE_S)
