"""The policies of the package are those of the flag, and a new one needs no more than its module."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hive.server.eviction import policies as package
from hive.server.eviction.leaves import LeafIndex
from hive.server.eviction.node import NodeRecord
from hive.server.eviction.policies import ENGINE_POLICIES, policies, policy_of
from hive.server.flags.server_args import HiveServerArgs

MODULE = """
from hive.server.eviction.base import EvictionPolicy


class MostRecentlyUsed(EvictionPolicy):
    name = "mru"
    about = "the KV that was used last"
    trims = False

    def class_of(self, node):
        return 0

    def weighing(self, clock, now):
        return lambda classes, used: -used.astype(float)
"""


class Leaf:
    def __init__(self, id: int, used: int) -> None:
        self.id = id
        self.hive = NodeRecord("a", "a", used, None)


@pytest.fixture
def another_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "most_recently_used.py").write_text(MODULE)
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    policies.cache_clear()
    yield
    policies.cache_clear()
    del sys.modules[f"{package.__name__}.most_recently_used"]


def test_the_flag_has_every_policy_with_what_it_does() -> None:
    parser = argparse.ArgumentParser()
    HiveServerArgs.add_cli_args(parser)
    (flag,) = (action for action in parser._actions if action.dest == "hive_eviction")
    assert (
        flag.choices
        == ("density", "paper", *ENGINE_POLICIES, "engine")
        == (*policies(), *ENGINE_POLICIES, "engine")
    )
    assert all(policy.about in str(flag.help) for policy in policies().values())


@pytest.mark.usefixtures("another_module")
def test_a_new_policy_is_one_module() -> None:
    assert list(policies()) == ["density", "mru", "paper"]
    policy: Any = policy_of("mru", lambda _: 0.0)
    index: LeafIndex[Leaf] = LeafIndex(policy)
    for id, used in ((1, 5), (2, 9), (3, 7)):
        index.add(Leaf(id, used))
    with closing(index.victims(10, 0.0)) as victims:
        assert [leaf.id for leaf in victims] == [2, 3, 1]


def test_sglangs_own_policies_are_none_of_ours() -> None:
    assert all(policy_of(name, lambda _: 0.0) is None for name in (*ENGINE_POLICIES, "engine"))
