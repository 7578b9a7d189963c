"""Many replays, several at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import NamedTuple

import torch

from bench.eviction.outcome import Outcome
from bench.eviction.scenarios import Scenario, replay


class Replayed(NamedTuple):
    """One replay."""

    scenario: str
    pool: int
    policy: str
    seed: int
    outcome: Outcome


class Work(NamedTuple):
    """Replays of the same requests."""

    scenario: Scenario
    seed: int
    pools: Sequence[int]
    policies: Sequence[str]

    def done(self) -> list[Replayed]:
        """Do them."""
        return [
            Replayed(
                self.scenario.name, pool, policy, self.seed, replay(self.scenario, pool, policy, self.seed)
            )
            for pool in self.pools
            for policy in self.policies
        ]


def replayed(work: Sequence[Work], workers: int) -> Iterator[list[Replayed]]:
    """The replays of each piece of work, as they are done by so many processes."""
    if workers == 1:
        yield from (each.done() for each in work)
        return
    # One thread each: the processes are as many as there shall be, and threads do not survive a fork.
    with ProcessPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as processes:
        for future in as_completed([processes.submit(each.done) for each in work]):
            yield future.result()
