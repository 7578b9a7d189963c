"""Samples of a state that are asked for at once share what is computed, and get what they would alone."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from hive.server.logits_cache.cache import CachedRequest, LogitsCache
from hive.server.logits_cache.in_flight import PATIENCE, InFlight
from hive.server.logits_cache.packing import pack
from hive.server.logits_cache.replay import Replay, Stop, Verdict
from hive.server.logits_cache.sampling import SamplingRule, draw_live, probability, uniform
from hive.server.logits_cache.trie import Node
from tests.hive.logits_cache.test_cache import ALL, EOS, VOCABULARY, ToyModel, serve

LENGTH = 6
RULE = SamplingRule.of(1.0, ALL, 1.0, 0.0)


@dataclass(eq=False)
class Job:
    """A request on its way through the engine."""

    seed: int
    prompt: list[int]
    arrives: int = 0
    aborted_at: int | None = None
    policy: Literal["stepwise", "distinct"] = "stepwise"
    output: list[int] = field(default_factory=list)
    replay: Replay | None = None
    request: CachedRequest | None = None
    over: bool = False

    @property
    def whole(self) -> bool:
        return len(self.output) == LENGTH or (bool(self.output) and self.output[-1] == EOS)


class Engine:
    """Loops as the scheduler does: slices of replays, then one step of all that the model computes."""

    def __init__(
        self,
        jobs: list[Job],
        cache: LogitsCache,
        flushed_at: int | None = None,
        head_size: int = VOCABULARY,
    ) -> None:
        self.jobs, self.cache, self.flushed_at = jobs, cache, flushed_at
        self.model = ToyModel(head_size)
        self.replaying: list[Job] = []
        self.computing: list[Job] = []
        self.loops = 0

    def run(self) -> None:
        while not all(job.over for job in self.jobs):
            assert self.loops < 3 * (PATIENCE + LENGTH), "somebody waits forever"
            self.loop()
            self.cache.check_integrity()

    def loop(self) -> None:
        if self.loops == self.flushed_at:
            self.cache.flush()
        for job in self.jobs:
            if job.aborted_at == self.loops and not job.over:
                self.end(job, ended=False)
            elif job.arrives == self.loops and not job.over:
                job.request = CachedRequest("m", RULE, job.seed, job.prompt, job.policy)
                job.replay = self.cache.begin(job.request)
                self.replaying.append(job)
        for job in list(self.replaying):
            self.slice(job)
        for job in list(self.computing):
            self.step(job)
        self.loops += 1

    def slice(self, job: Job) -> None:
        assert job.replay is not None
        assert job.request is not None

        def take(token: int, _node: Node) -> Verdict:
            job.output.append(token)
            return Verdict.FINISHED if job.whole else Verdict.CONTINUES

        self.cache.run(job.replay, job.request, job.output, take, limit=3)
        if job.replay.stop is None:
            return
        self.cache.concluded(job.replay)
        if job.replay.stop is Stop.FINISHED:
            self.end(job, ended=True)
        else:
            self.replaying.remove(job)
            self.cache.queued(job.request, job.output)
            self.computing.append(job)

    def step(self, job: Job) -> None:
        assert job.request is not None
        row = self.model.row([*job.prompt, *job.output])
        head = self.model.head(row, RULE.temperature)
        u = uniform(job.seed, len(job.prompt) + len(job.output) - 1)
        sample = job.request.sample
        constraint = sample.constraint() if sample is not None else None
        if constraint is not None and constraint.only:
            (token,) = constraint.tokens
        else:
            factors = dict.fromkeys(constraint.tokens, 0.0) if constraint is not None else None
            token = draw_live(head, lambda: row, RULE, u, factors)
        job.output.append(token)
        if sample is not None:
            sample.advance(token, probability(head, lambda: row, RULE, token))
        self.cache.record(job.request, job.output, pack(head))
        if job.whole:
            self.end(job, ended=True)

    def end(self, job: Job, *, ended: bool) -> None:
        job.over = True
        for queue in (self.replaying, self.computing):
            if job in queue:
                queue.remove(job)
        if job.request is not None:
            self.cache.depart(job.request, job.output, ended=ended, replayed=0)


def alone(job: Job, head_size: int = VOCABULARY) -> list[int]:
    return serve(ToyModel(head_size), None, job.prompt, RULE, job.seed, LENGTH)[0]


JOBS = st.lists(
    st.builds(
        Job,
        seed=st.integers(0, 5),
        prompt=st.sampled_from([[4], [4, 7]]),
        arrives=st.integers(0, 4),
        aborted_at=st.none() | st.integers(0, 8),
    ),
    min_size=1,
    max_size=10,
)


@settings(max_examples=300, deadline=None)
@given(JOBS, st.none() | st.integers(0, 8))
def test_everyone_gets_what_it_would_get_alone_whoever_leaves_on_the_way(
    jobs: list[Job], flushed_at: int | None
) -> None:
    engine = Engine(jobs, LogitsCache(10**7), flushed_at)
    engine.run()
    for job in jobs:
        if job.whole:
            assert job.output == alone(job)
        else:
            assert job.output == alone(job)[: len(job.output)]
    assert len(engine.cache.in_flight) == 0


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=12))
def test_a_state_is_computed_once_however_many_are_there(seeds: list[int]) -> None:
    jobs = [Job(seed, [4]) for seed in seeds]
    engine = Engine(jobs, LogitsCache(10**7))
    engine.run()
    states = {tuple(job.output[:length]) for job in jobs for length in range(len(job.output))}
    assert engine.model.passes == len(states)
    # Nobody is later than it would be alone by more than the loop in which a row is handed on.
    assert engine.loops <= 2 * LENGTH + 1


def distinct_jobs(aborted_at: st.SearchStrategy[int | None]) -> st.SearchStrategy[list[Job]]:
    return st.lists(
        st.builds(
            Job,
            seed=st.integers(0, 3),
            prompt=st.sampled_from([[4], [4, 7]]),
            arrives=st.integers(0, 6),
            aborted_at=aborted_at,
            policy=st.sampled_from(["distinct", "distinct", "stepwise"]),
        ),
        min_size=1,
        max_size=10,
    )


@settings(max_examples=200, deadline=None)
@given(distinct_jobs(st.none()), st.sampled_from([VOCABULARY, 3]))
def test_distinct_samples_at_once_are_those_drawn_one_after_the_other(
    jobs: list[Job], head_size: int
) -> None:
    engine = Engine(jobs, LogitsCache(10**7), head_size=head_size)
    engine.run()
    assert len(engine.cache.in_flight) == 0
    one_by_one = LogitsCache(10**7)
    # Arrivals of one loop begin in the order of the list.
    for job in sorted(jobs, key=lambda job: job.arrives):
        if job.policy == "stepwise":
            assert job.output == alone(job, head_size)
        else:
            again = replace(job, arrives=0, output=[], replay=None, request=None, over=False)
            Engine([again], one_by_one, head_size=head_size).run()
            assert again.output == job.output


@settings(max_examples=200, deadline=None)
@given(distinct_jobs(st.none() | st.integers(0, 12)), st.sampled_from([VOCABULARY, 3]))
def test_distinct_samples_stay_distinct_whoever_leaves_on_the_way(jobs: list[Job], head_size: int) -> None:
    engine = Engine(jobs, LogitsCache(10**7), head_size=head_size)
    engine.run()
    assert len(engine.cache.in_flight) == 0
    for prompt in ([4], [4, 7]):
        whole = [
            tuple(job.output)
            for job in jobs
            if job.whole and (job.policy, job.prompt) == ("distinct", prompt)
        ]
        assert len(whole) == len(set(whole))


def test_distinct_samples_are_drawn_side_by_side() -> None:
    jobs = [Job(seed, [4], policy="distinct") for seed in range(8)]
    engine = Engine(jobs, LogitsCache(10**7))
    engine.run()
    assert len({tuple(job.output) for job in jobs}) == len(jobs)
    states = {tuple(job.output[:length]) for job in jobs for length in range(len(job.output))}
    assert engine.model.passes == len(states), "each state is computed once"
    assert engine.loops < len(jobs) * LENGTH / 2


def test_coalesced_requests_are_counted() -> None:
    engine = Engine([Job(1, [4]), Job(1, [4]), Job(1, [9])], LogitsCache(10**7))
    engine.run()
    assert engine.cache.summary()["coalesced"] == 1


def test_who_waits_for_a_row_that_does_not_come_computes_it() -> None:
    cache = LogitsCache(10**7)
    stuck, waiting = (CachedRequest("m", RULE, seed, [4]) for seed in (1, 2))
    cache.begin(stuck)
    cache.queued(stuck, [])
    replay = cache.begin(waiting)
    slices = 0
    while replay.stop is None or not slices:
        cache.run(replay, waiting, [], lambda token, node: Verdict.REFUSED, 3)
        slices += 1
    assert slices == PATIENCE + 2
    assert replay.stop is Stop.UNKNOWN


def test_states_are_counted() -> None:
    states = InFlight()
    states.add(b"a")
    states.add(b"a")
    states.discard(b"a")
    assert b"a" in states
    states.discard(b"a")
    states.discard(b"a")
    assert b"a" not in states
    assert len(states) == 0
