"""The paper's policy: the worth of a node is the score of the agent that computed it."""

from __future__ import annotations

from collections import Counter
from contextlib import closing

import numpy as np

from hive.server.eviction.leaves import LeafIndex
from hive.server.eviction.node import NodeRecord
from hive.server.eviction.policies.contribution import ContributionPolicy

SCORES = {"low": 0.1, "middle": 0.4, "high": 0.9}


class Leaf:
    def __init__(self, id: int, producer: str, used: int = 0) -> None:
        self.id = id
        self.hive = NodeRecord(producer, "reader", used, None)


def test_the_worth_of_a_node_is_its_producers_score() -> None:
    policy = ContributionPolicy(SCORES.__getitem__)
    classes = np.array([policy.class_of(Leaf(0, name).hive) for name in ("high", "low", "high")], np.int32)
    assert policy.weighing(9, 0.0)(classes, np.zeros(3, np.int64)).tolist() == [0.9, 0.1, 0.9]


def test_each_agents_score_is_asked_for_once_in_an_eviction() -> None:
    asked: Counter[str] = Counter()

    def score(agent: str) -> float:
        asked[agent] += 1
        return SCORES[agent]

    index: LeafIndex[Leaf] = LeafIndex(ContributionPolicy(score))
    for id in range(30):
        index.add(Leaf(id, ("low", "high")[id % 2]))
    with closing(index.victims(9, 0.0)) as victims:
        for leaf in victims:
            index.discard(leaf)
            if leaf.id < 30:
                index.add(Leaf(100 + leaf.id, leaf.hive.producer))
    assert asked == {"low": 1, "high": 1}


def test_a_parent_may_be_of_an_agent_that_had_no_leaf_before() -> None:
    index: LeafIndex[Leaf] = LeafIndex(ContributionPolicy(SCORES.__getitem__))
    for id, producer in enumerate(("low", "high")):
        index.add(Leaf(id, producer))
    gone = []
    with closing(index.victims(9, 0.0)) as victims:
        for leaf in victims:
            index.discard(leaf)
            gone.append(leaf.hive.producer)
            if gone == ["low"]:
                index.add(Leaf(2, "middle"))
    assert gone == ["low", "middle", "high"]
