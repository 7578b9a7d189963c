"""Sampling without replacement, held against the enumeration of every output of small models."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from numpy.typing import NDArray

from hive.server.logits_cache.distinct import (
    EXHAUSTED,
    NODE_BYTES,
    TREE_BYTES,
    Choice,
    Constraint,
    DistinctSample,
    DistinctTree,
)
from hive.server.logits_cache.distinct_trees import DistinctTrees
from hive.server.logits_cache.head import Head
from hive.server.logits_cache.residual import Drawn
from hive.server.logits_cache.sampling import SamplingRule, draw, uniform
from tests.hive.logits_cache.truth import expected, whole_head

ALL = 1 << 30
PLAIN = SamplingRule.of(1.0, ALL, 1.0, 0.0)
EOS = 0
Output = tuple[int, ...]


@dataclass
class ToyModel:
    """A Markov chain over a few tokens: ``rows`` (float32, ``[vocabulary + 1, vocabulary]``) by last token, the
    last row for the beginning.  An output ends with token 0 or at ``length`` tokens."""

    rows: NDArray[np.float32]
    rule: SamplingRule
    length: int = 4
    error: float = 0.0
    """Relative error of the sums that heads shorter than their rows come with."""
    heads: dict[tuple[int, int], Head] = field(default_factory=dict)

    def row(self, output: Output) -> NDArray[np.float32]:
        row: NDArray[np.float32] = self.rows[output[-1] if output else -1]
        return row

    def head(self, output: Output, size: int) -> Head:
        """The first ``size`` tokens of the row behind an output, with the normaliser."""
        key = (output[-1] if output else -1, size)
        if key not in self.heads:
            whole = whole_head(self.row(output), self.rule.temperature)
            sums = {t: total * (1.0 + self.error) for t, total in whole.normalisers.items()}
            self.heads[key] = Head(whole.ids[:size], whole.logits[:size], whole.support, sums)
        return self.heads[key]

    def ends(self, output: Output) -> bool:
        return len(output) == self.length or (bool(output) and output[-1] == EOS)

    def distribution(self, output: Output) -> NDArray[np.float64]:
        """The rule's next-token distribution (float64, ``[vocabulary]``)."""
        return expected(self.row(output), self.rule)

    def outputs(self, output: Output = (), probability: float = 1.0) -> Iterator[tuple[Output, float]]:
        """Every output of non-zero probability, with it."""
        if self.ends(output):
            yield output, probability
            return
        for token, p in enumerate(self.distribution(output).tolist()):
            if p > 0.0:
                yield from self.outputs((*output, token), probability * p)


def live_draw(model: ToyModel, output: Output, constraint: Constraint | None, u: float) -> tuple[int, float]:
    """What a server's live sampler does with the whole row: truncate, leave tokens out, invert the CDF."""
    probabilities = model.distribution(output)
    row = model.row(output)
    if constraint is not None and constraint.only:
        (token,) = constraint.tokens
        return token, float(probabilities[token])
    order = np.array(sorted(range(len(row)), key=lambda i: (-row[i], i)))
    barred = constraint.tokens if constraint is not None else ()
    residual = np.array([probabilities[i] * (i not in barred) for i in order.tolist()])
    if residual.sum() == 0.0:
        residual = probabilities[order]
    cumulative = np.cumsum(residual)
    index = int(np.searchsorted(cumulative, u * cumulative[-1], side="right"))
    index = min(index, int(np.flatnonzero(residual)[-1]))
    token = int(order[index])
    return token, float(probabilities[token])


def step(model: ToyModel, sample: DistinctSample, output: Output, u: float, size: int) -> tuple[Output, bool]:
    """One token more, and whether the live model had to draw it; none if earlier samples must first go on."""
    way = sample.choice
    drawn: Drawn | None = None
    if way is Choice.BRANCH:
        drawn = sample.draw(model.head(output, size), u)
    elif way is not Choice.WAIT:
        drawn = sample.following(way)
    if drawn is None and sample.blocked:
        return output, False
    live = drawn is None
    if drawn is None:
        token, probability = live_draw(model, output, sample.constraint(), u)
        sample.advance(token, probability)
    else:
        token = drawn.token
        sample.advance(*drawn)
    return (*output, token), live


def begin(tree: DistinctTree, uniforms: Iterator[float] = itertools.repeat(0.5)) -> DistinctSample:  # noqa: B008
    """The next sample, which decides whom to follow by the next numbers."""
    return tree.sample(lambda _depth: next(uniforms))


def take(
    model: ToyModel, sample: DistinctSample, uniforms: Iterator[float], size: int, live: list[Output]
) -> Output:
    """Draw one output to its end; states where the live model had to draw are appended to ``live``."""
    output: Output = ()
    while not model.ends(output):
        longer, by_model = step(model, sample, output, next(uniforms), size)
        assert longer != output, "there is nobody to wait for"
        if by_model:
            live.append(output)
        output = longer
    sample.finish(True)
    return output


def endless(seed: int) -> Iterator[float]:
    rng = np.random.default_rng(seed)
    while True:
        yield float(rng.random())


def random_model(seed: int, vocabulary: int, spread: float, rule: SamplingRule, length: int = 4) -> ToyModel:
    rng = np.random.default_rng(seed)
    rows = (rng.normal(size=(vocabulary + 1, vocabulary)) * spread).astype(np.float32)
    # A coarse grid makes ties common, as bf16 does; forbidden tokens are what a grammar leaves behind.
    if seed % 3 == 0:
        rows = np.round(rows)
    rows[rng.random(rows.shape) < 0.15] = -np.inf
    rows[:, 0] = np.where((rows > -np.inf).any(axis=1), rows[:, 0], 0.0)
    return ToyModel(rows, rule, length)


sampling_rules = st.one_of(
    st.just(PLAIN),
    st.builds(
        SamplingRule.of,
        st.sampled_from([0.5, 1.0, 2.0]),
        st.sampled_from([1, 2, 3, ALL]),
        st.sampled_from([0.3, 0.6, 0.9, 1.0]),
        st.sampled_from([0.0, 0.05, 0.3]),
    ),
)
models = st.builds(
    random_model, st.integers(0, 10**6), st.integers(3, 5), st.sampled_from([0.5, 1.5]), sampling_rules
)
seeds = st.integers(0, 2**32)


@settings(max_examples=80, deadline=None)
@given(models, seeds, st.integers(1, 5))
def test_every_output_comes_once_with_its_probability_before_any_repeats(
    model: ToyModel, seed: int, size: int
) -> None:
    truth = dict(model.outputs())
    tree = DistinctTree(model.rule)
    uniforms = endless(seed)
    seen: set[Output] = set()
    for _ in range(len(truth)):
        assert not tree.exhausted
        sample = begin(tree, uniforms)
        output = take(model, sample, uniforms, size, [])
        tree.check_integrity()
        assert not sample.repeats
        assert output not in seen
        seen.add(output)
        assert math.isclose(sample.log_probability, math.log(truth[output]), abs_tol=1e-9)
        left = sum(p for other, p in truth.items() if other not in seen)
        assert tree.remaining == pytest.approx(left, abs=1e-12)
    assert seen == truth.keys()
    assert tree.exhausted

    sample = begin(tree, uniforms)
    assert sample.repeats
    again = take(model, sample, uniforms, size, [])
    assert math.isclose(sample.log_probability, math.log(truth[again]), abs_tol=1e-9)


def residual(
    model: ToyModel, truth: dict[Output, float], used: set[Output], prefix: Output
) -> NDArray[np.float64]:
    """The next token's distribution given that no used output comes again, by enumeration."""
    left = np.zeros(model.rows.shape[1])
    for output, probability in truth.items():
        if output not in used and output[: len(prefix)] == prefix:
            left[output[len(prefix)]] += probability
    left /= left.sum()
    return left


@settings(max_examples=200, deadline=None)
@given(models, seeds, st.integers(1, 12))
def test_each_token_follows_the_residual_distribution(model: ToyModel, seed: int, samples: int) -> None:
    """By the chain rule, samples whose every token follows the residual distribution are draws without
    replacement.  Both choices invert a CDF, so their distribution is the boundaries between their answers: where the
    enumeration says that one ends and the next begins, the answers on either side must be these."""
    truth = dict(model.outputs())
    tree = DistinctTree(model.rule)
    used: list[Output] = []
    for number in range(min(samples, len(truth))):
        output = take(model, begin(tree, endless(seed + number)), endless(3 * seed + number), 9, [])
        # As if it had not been drawn yet: the next sample is looked at on its way along this output.
        tree = DistinctTree(model.rule)
        for again in range(number):
            take(model, begin(tree, endless(seed + again)), endless(3 * seed + again), 9, [])
        for length in range(len(output)):
            check_choices(
                model, tree, residual(model, truth, set(used), output[:length]), used, output[:length]
            )
        assert take(model, begin(tree, endless(seed + number)), endless(3 * seed + number), 9, []) == output
        used.append(output)


def check_choices(
    model: ToyModel, tree: DistinctTree, expected: NDArray[np.float64], used: list[Output], state: Output
) -> None:
    """The next sample's choices at a state: whom to follow, and what to draw where it follows nobody."""
    head = model.head(state, 9)
    # In the order in which they were taken, which is that of the choice.
    known = list(dict.fromkeys(other[len(state)] for other in used if other[: len(state)] == state))
    new = [token for token in head.ids.tolist() if token not in known]
    leaving = float(sum(expected[token] for token in new))
    if leaving > 1e-8:
        for u in (1e-9 * leaving, leaving * (1 - 1e-9)):
            assert choice(tree, model, state, u) is Choice.BRANCH
        edge = 0.0
        for token in new:
            share = float(expected[token]) / leaving
            if share > 1e-8:
                for u in (edge + 1e-9, edge + share - 1e-9):
                    drawn = choice(tree, model, state, 0.0, head, u)
                    assert isinstance(drawn, Drawn)
                    assert drawn.token == token
                    assert drawn.probability == pytest.approx(model.distribution(state)[token])
            edge += share
    edge = leaving
    for token in known:
        if expected[token] > 1e-8:
            for u in (edge + 1e-9, edge + float(expected[token]) - 1e-9):
                assert choice(tree, model, state, u) == token
        edge += float(expected[token])


def choice(
    tree: DistinctTree, model: ToyModel, state: Output, u: float, head: Head | None = None, v: float = 0.0
) -> int | Choice | Drawn | None:
    """Where a sample goes from a state, or which token it draws there; it comes to nothing."""
    sample = begin(tree, itertools.repeat(u))
    for length, token in enumerate(state):
        sample.advance(token, float(model.distribution(state[:length])[token]))
    found = sample.choice if head is None else sample.draw(head, v)
    sample.finish(False)
    return found


def test_the_first_three_samples_have_the_distribution_of_draws_without_replacement() -> None:
    model = random_model(5, 3, 1.0, SamplingRule.of(1.0, ALL, 0.9, 0.0), length=2)
    truth = dict(model.outputs())
    assert len(truth) >= 4
    count = 10_000
    uniforms = endless(1)
    seen: Counter[tuple[Output, ...]] = Counter()
    for _ in range(count):
        tree = DistinctTree(model.rule)
        seen[tuple(take(model, begin(tree, uniforms), uniforms, 2, []) for _ in range(3))] += 1
    statistic, cells = 0.0, 0
    for triple in itertools.permutations(truth, 3):
        probability, left = 1.0, 1.0
        for output in triple:
            probability *= truth[output] / left
            left -= truth[output]
        if probability * count >= 5:
            statistic += (seen[triple] - probability * count) ** 2 / (probability * count)
            cells += 1
    assert cells > 10
    # Pearson's statistic has mean ``cells`` and variance ``2 * cells``: five sigma.
    assert statistic < cells + 5 * math.sqrt(2 * cells)


@settings(max_examples=150, deadline=None)
@given(models, seeds, st.integers(1, 3))
def test_truncated_heads_and_live_draws_give_what_whole_rows_give(
    model: ToyModel, seed: int, size: int
) -> None:
    whole, short = DistinctTree(model.rule), DistinctTree(model.rule)
    live: list[Output] = []
    for i in range(len(dict(model.outputs())) + 2):
        samples = begin(whole, endless(seed + i + 99)), begin(short, endless(seed + i + 99))
        outputs = (
            take(model, samples[0], endless(seed + i), 9, []),
            take(model, samples[1], endless(seed + i), size, live),
        )
        assert outputs[0] == outputs[1]
        assert samples[0].log_probability == pytest.approx(samples[1].log_probability, abs=1e-9)
        assert samples[0].repeats == samples[1].repeats
        assert whole.remaining == pytest.approx(short.remaining, abs=1e-12)
        short.check_integrity()
    event("live draws" if live else "no live draw")


@settings(max_examples=60, deadline=None)
@given(models, seeds, st.integers(1, 3), st.sampled_from([-1e-7, 1e-7]))
# Every state is corrected, also one in which no output ends.
@example(random_model(13275, 5, 1.5, SamplingRule(1.0, 1 << 30, 1.0, 0.0)), 174, 1, 1e-7)
def test_sums_added_up_in_single_precision_cost_a_few_marked_repetitions(
    model: ToyModel, seed: int, size: int, error: float
) -> None:
    model.error = error
    truth = dict(model.outputs())
    tree = DistinctTree(model.rule)
    uniforms = endless(seed)
    seen: set[Output] = set()
    repetitions = 0
    while not tree.exhausted:
        sample = begin(tree, uniforms)
        output = take(model, sample, uniforms, size, [])
        tree.check_integrity()
        assert sample.repeats == (output in seen)
        repetitions += sample.repeats
        assert math.isclose(sample.log_probability, math.log(truth[output]), abs_tol=1e-6)
        seen.add(output)
    assert sum(truth[output] for output in truth.keys() - seen) < 1e-11
    states = {output[:length] for output in truth for length in range(len(output))}
    assert repetitions <= 1 + len(states), "each state is corrected once"


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), seeds, st.integers(1, 5), st.sampled_from([0.05, 1.0]))
def test_probabilities_of_any_size_never_lead_to_an_unmarked_repetition(
    model_seed: int, seed: int, size: int, temperature: float
) -> None:
    """Logits that lie tens apart: outputs of probability 1 - 1e-13 and of 1e-40."""
    model = random_model(model_seed, 4, 12.0, SamplingRule.of(temperature, ALL, 1.0, 0.0), length=3)
    truth = dict(model.outputs())
    tree = DistinctTree(model.rule)
    uniforms = endless(seed)
    seen: set[Output] = set()
    while not tree.exhausted:
        sample = begin(tree, uniforms)
        output = take(model, sample, uniforms, size, [])
        tree.check_integrity()
        assert sample.repeats or output not in seen
        if sample.repeats:
            assert sum(p for other, p in truth.items() if other not in seen) < 1e-11
        seen.add(output)
    assert sum(p for other, p in truth.items() if other not in seen) < 1e-11


def test_what_a_nearly_certain_output_leaves_is_still_reached() -> None:
    """1 - p cancels to nothing at p = 1 - 1e-13; the sum over the other tokens does not."""
    rows = np.array([[0.0, -25.0, -26.0]] * 4, dtype=np.float32)
    model = ToyModel(rows, PLAIN, length=3)
    tree = DistinctTree(PLAIN)
    first = take(model, begin(tree), iter([0.5]), 3, [])
    assert first == (EOS,)
    left = sum(p for output, p in model.outputs() if output != first)
    assert tree.remaining == pytest.approx(left, rel=1e-12)
    assert take(model, begin(tree, endless(11)), endless(1), 3, []) != first


def test_a_token_just_below_one_is_drawn_from_nothing_that_is_used_up() -> None:
    model = random_model(2, 5, 1.0, PLAIN)
    tree = DistinctTree(PLAIN)
    highest = math.nextafter(1.0, 0.0)
    outputs = [
        take(model, begin(tree, itertools.repeat(highest)), itertools.repeat(highest), 5, [])
        for _ in range(20)
    ]
    assert len(set(outputs)) == 20


def test_a_rest_at_the_bottom_of_the_floats_is_still_drawn() -> None:
    tree = DistinctTree(PLAIN)
    sample = begin(tree)
    sample.advance(1, 0.5)
    sample.advance(2, 1.0)
    sample.advance(3, 1.0, untaken=5e-324)
    sample.finish(True)
    sample = begin(tree, itertools.repeat(0.9))
    sample.advance(1, 0.5)
    assert sample.choice == 2, (
        "0.9 times the smallest float is the smallest float, the end of the last interval"
    )


@settings(max_examples=100, deadline=None)
@given(models, st.floats(0, 1, exclude_max=True), st.integers(1, 5))
def test_the_first_sample_is_the_ordinary_one(model: ToyModel, u: float, size: int) -> None:
    drawn = begin(DistinctTree(model.rule)).draw(model.head((), size), u)
    if drawn is None:
        assert not model.head((), size).complete
    else:
        assert drawn.token == draw(model.head((), size), model.rule, u)


def test_greedy_sampling_is_exhausted_by_its_first_sample() -> None:
    for size in (1, 5):
        model = random_model(1, 5, 1.0, SamplingRule.of(1.0, 1, 1.0, 0.0))
        tree = DistinctTree(model.rule)
        sample = begin(tree)
        first = take(model, sample, endless(1), size, [])
        assert sample.log_probability == 0.0
        assert tree.remaining == 0.0
        sample = begin(tree)
        assert sample.repeats
        assert take(model, sample, endless(2), size, []) == first


def test_a_cut_beyond_the_head_is_learnt_from_the_first_live_draw() -> None:
    row = np.log(np.array([0.4, 0.3, 0.2, 0.1], dtype=np.float32))
    model = ToyModel(np.stack([row] * 5), SamplingRule.of(1.0, ALL, 0.75, 0.0), length=1)
    tree = DistinctTree(model.rule)
    live: list[Output] = []
    first = take(model, begin(tree), iter([0.5]), 2, live)
    assert (first, live) == ((1,), [()]), (
        "the third token is kept, but the head does not say how likely it is"
    )
    sample = begin(tree)
    drawn = sample.draw(model.head((), 2), 0.6)
    assert drawn is not None
    assert drawn.token == 0
    assert drawn.probability == pytest.approx(4 / 9)
    assert drawn.untaken == pytest.approx(2 / 9)
    assert sample.draw(model.head((), 2), 0.7) is None, "4/9 of 6/9 used: the third token begins at 2/3"


def test_a_head_without_the_normaliser_leaves_the_draw_to_the_model() -> None:
    head = Head(np.array([3, 1], dtype=np.int32), np.array([1.0, 0.0], dtype=np.float32), 9, {0.5: 1.5})
    assert begin(DistinctTree(PLAIN)).draw(head, 0.0) is None
    nothing = Head(np.array([], dtype=np.int32), np.array([], dtype=np.float32), 9, {1.0: 1.5})
    assert begin(DistinctTree(PLAIN)).draw(nothing, 0.0) is None


def test_an_aborted_sample_leaves_nothing_behind() -> None:
    model = random_model(1, 4, 1.0, PLAIN)
    tree = DistinctTree(PLAIN)
    take(model, begin(tree, endless(11)), endless(1), 4, [])
    before = tree.remaining, tree.nbytes
    sample = begin(tree)
    drawn = sample.draw(model.head((), 4), 0.9)
    assert drawn is not None
    sample.advance(*drawn)
    sample.finish(False)
    assert (tree.remaining, tree.nbytes) == before
    assert not tree.in_flight
    tree.check_integrity()


def test_a_state_with_an_empty_output_is_exhausted_by_it() -> None:
    tree = DistinctTree(PLAIN)
    begin(tree).finish(True)
    assert tree.exhausted


@pytest.mark.parametrize("live", [False, True])
def test_rows_that_changed_in_the_meantime_mark_the_repetition_and_use_up_the_state(live: bool) -> None:
    """The tree expects a rest of 0.1, of which the newer row knows nothing."""
    tree = DistinctTree(PLAIN)
    for token, probability in ((1, 0.5), (2, 0.4)):
        sample = begin(tree)
        sample.advance(token, probability)
        sample.finish(True)
    assert tree.remaining == pytest.approx(0.1)
    sample = begin(tree)
    assert sample.choice is Choice.BRANCH
    if live:
        constraint = sample.constraint()
        assert constraint is not None
        assert (set(constraint.tokens), constraint.only) == ({1, 2}, False)
        sample.advance(1, 0.5)
    else:
        head = whole_head(np.array([-np.inf, 0.0, 0.0], dtype=np.float32), 1.0)
        assert sample.draw(head, 0.7) is None
        assert sample.choice is Choice.BRANCH, "and leaves nothing out"
        drawn = sample.draw(head, 0.7)
        assert drawn is not None
        assert drawn.token == 2
        sample.advance(*drawn)
    assert sample.repeats
    assert sample.constraint() is None
    sample.finish(True)
    assert tree.exhausted
    tree.check_integrity()


def test_a_sample_ends_once() -> None:
    sample = begin(DistinctTree(PLAIN))
    sample.finish(False)
    with pytest.raises(AssertionError, match="twice"):
        sample.finish(True)


@dataclass
class Walker:
    """A sample on its way, drawing with numbers that depend on nothing but its own name and place."""

    model: ToyModel
    sample: DistinctSample
    name: int
    size: int
    """Tokens that heads know."""
    output: Output = ()
    turns: int = 0

    @classmethod
    def begin(cls, model: ToyModel, tree: DistinctTree, name: int, size: int) -> Walker:
        return cls(model, tree.sample(lambda depth: uniform(1000 + name, depth)), name, size)

    def step(self) -> bool:
        """Take a token if that is possible now; whether it was."""
        self.turns += 1
        before = self.output
        u = uniform(self.name, len(before))
        self.output, _ = step(self.model, self.sample, before, u, self.size)
        return self.output != before

    @property
    def whole(self) -> bool:
        return self.model.ends(self.output)

    def to_its_end(self) -> Output:
        while not self.whole:
            assert self.step()
        self.sample.finish(True)
        return self.output


def side_by_side(
    model: ToyModel, size: int, aborted: Sequence[bool], order: random.Random
) -> tuple[DistinctTree, dict[int, Walker]]:
    """Samples that begin, go on and come to nothing at random; the tree, and the samples by name."""
    tree = DistinctTree(model.rule)
    names = iter(range(len(aborted)))
    walking: list[Walker] = []
    over: dict[int, Walker] = {}
    while len(over) < len(aborted):
        name = next(names, None) if order.random() < 0.5 else None
        if name is not None:
            walking.append(Walker.begin(model, tree, name, size))
        for walker in order.sample(walking, len(walking)):
            if order.random() < 0.7 and not walker.whole:
                walker.step()
            gone = aborted[walker.name] and not walker.whole and order.random() < 0.2
            if walker.whole or gone:
                walker.sample.finish(not gone)
                walking.remove(walker)
                over[walker.name] = walker
            tree.check_integrity()
            assert walker.turns < 500, "somebody waits forever"
    assert not tree.in_flight
    return tree, over


@settings(max_examples=300, deadline=None)
@given(models, st.integers(1, 5), st.integers(2, 12), st.randoms())
def test_samples_side_by_side_get_what_they_would_get_one_after_the_other(
    model: ToyModel, size: int, count: int, order: random.Random
) -> None:
    tree, over = side_by_side(model, size, [False] * count, order)
    alone = DistinctTree(model.rule)
    for name in range(count):
        walker = Walker.begin(model, alone, name, size)
        assert walker.to_its_end() == over[name].output
        assert walker.sample.repeats == over[name].sample.repeats
        assert walker.sample.log_probability == pytest.approx(over[name].sample.log_probability)
    assert tree.remaining == pytest.approx(alone.remaining, abs=1e-9)
    assert tree.nbytes == alone.nbytes


@settings(max_examples=300, deadline=None)
@given(models, st.integers(1, 5), st.lists(st.booleans(), min_size=2, max_size=12), st.randoms())
def test_samples_that_come_to_nothing_leave_nothing_behind(
    model: ToyModel, size: int, aborted: list[bool], order: random.Random
) -> None:
    tree, over = side_by_side(model, size, aborted, order)
    new = [walker.output for walker in over.values() if walker.whole and not walker.sample.repeats]
    truth = dict(model.outputs())
    assert len(new) == len(set(new)), "a repetition that nobody noticed"
    assert tree.remaining == pytest.approx(1.0 - sum(truth[output] for output in new), abs=1e-9)
    taken = {output[: length + 1] for output in new for length in range(len(output))}
    assert tree.nbytes <= TREE_BYTES + NODE_BYTES * (1 + len(taken))


def test_samples_that_part_at_once_do_not_wait_for_each_other() -> None:
    """Eight tokens in a row that nobody knows beforehand: whoever differs at the first goes on alone."""
    rows = np.zeros((9, 8), dtype=np.float32)
    rows[:, 0] = -30.0
    model = ToyModel(rows, PLAIN, length=12)
    tree = DistinctTree(PLAIN)
    walkers = [Walker.begin(model, tree, name, 8) for name in range(6)]
    loops = 0
    while walkers:
        loops += 1
        for walker in list(walkers):
            walker.step()
            if walker.whole:
                walker.sample.finish(True)
                walkers.remove(walker)
    # Each follows another for one or two tokens at the most; one after the other would be 72 loops.
    assert loops <= 24


def test_what_an_earlier_sample_may_still_use_up_is_bounded_by_what_it_has_drawn() -> None:
    tree = DistinctTree(PLAIN)
    first = begin(tree)

    def said() -> list[int | Choice]:
        """Where the next sample would go, by its number."""
        found: list[int | Choice] = []
        for u in (0.39, 0.41, 0.56, 0.58):
            sample = begin(tree, itertools.repeat(u))
            found.append(sample.choice)
            assert sample.blocked == (found[-1] is not Choice.BRANCH and tree.remaining == 1.0)
            sample.finish(False)
        return found

    assert said() == [Choice.WAIT] * 4, "the first one has not drawn, and may be the only output"
    first.advance(7, 0.6)
    # 0.4 are untaken; behind the token all may go or nothing.
    assert said() == [Choice.BRANCH, Choice.WAIT, Choice.WAIT, Choice.WAIT]
    first.advance(8, 0.49)
    # At least 0.306 stay: those who leave are below 0.4 / 0.706 = 0.567 at the most.
    assert said() == [Choice.BRANCH, Choice.WAIT, Choice.WAIT, 7]
    first.finish(True)
    assert said() == [Choice.BRANCH, Choice.BRANCH, Choice.BRANCH, 7]


def half(_depth: int) -> float:
    return 0.5


def test_states_rules_and_forgetting() -> None:
    trees = DistinctTrees(10**6)
    cold = SamplingRule.of(0.5, ALL, 1.0, 0.0)
    for digest, rule_ in ((b"a", PLAIN), (b"a", cold), (b"b", PLAIN)):
        trees.sample(digest, rule_, half).finish(True)
    assert len(trees) == 3
    assert trees.sample(b"a", PLAIN, half).repeats
    assert not trees._trees[b"a", PLAIN].in_flight, "an ordinary one"
    trees.sample(b"d", PLAIN, half)
    assert trees._trees[b"d", PLAIN].in_flight
    assert (b"d", cold) not in trees._trees
    trees.capacity_bytes = 1
    trees.sample(b"c", PLAIN, half).finish(True)
    assert len(trees) == 1, "only the tree with a sample in flight stays"
    assert trees.forgotten == 4
    trees.check_integrity()
    assert not trees.sample(b"b", PLAIN, half).repeats, "forgotten"


class TreesMachine(RuleBasedStateMachine):
    """Samples of few states begin, end, abort and are forgotten in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.trees = DistinctTrees(20_000)
        self.running: dict[bytes, DistinctSample] = {}

    digests = st.sampled_from([b"a", b"b", b"c", b"d"])

    @rule(digest=digests)
    def begin(self, digest: bytes) -> None:
        if digest not in self.running:
            tree = self.trees._trees.get((digest, PLAIN))
            assert tree is None or not tree.in_flight
            self.running[digest] = self.trees.sample(digest, PLAIN, half)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), tokens=st.lists(st.integers(0, 3), max_size=15), ended=st.booleans())
    def finish(self, data: st.DataObject, tokens: list[int], ended: bool) -> None:
        digest = data.draw(st.sampled_from(sorted(self.running)))
        sample = self.running.pop(digest)
        for token in tokens:
            sample.advance(token, 0.25)
        sample.finish(ended)

    @precondition(lambda self: not self.running)
    @rule()
    def flush(self) -> None:
        self.trees.clear()

    @rule(digest=digests)
    def flush_in_flight(self, digest: bytes) -> None:
        sample = self.running.pop(digest, None)
        if sample is not None:
            self.trees.clear()
            self.running.clear()
            sample.advance(1, 0.25)
            sample.finish(True)

    @invariant()
    def books_balance(self) -> None:
        self.trees.check_integrity()


TestTreesMachine = TreesMachine.TestCase
TestTreesMachine.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)


def test_exhaustion_is_a_threshold_on_mass() -> None:
    tree = DistinctTree(PLAIN)
    sample = begin(tree)
    sample.advance(1, 1.0, untaken=EXHAUSTED / 2)
    sample.finish(True)
    assert tree.exhausted
    assert tree.remaining > 0.0
