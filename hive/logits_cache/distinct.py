"""Exact sampling without replacement over the outputs of one state.

A search program that samples a state again pays for every duplicate.  A :class:`DistinctTree` remembers which
share of the probability earlier samples of a state used up, along the paths they took and nowhere else; the next
sample is drawn token by token from what is left.  The k-th sample then has exactly the distribution of the k-th
draw without replacement over whole outputs (UniqueRandomizer: Shi, Bieber and Singh, "Incremental Sampling Without
Replacement for Sequence Models", 2020), and its probability under the model is known.  (The paper's section 6
resamples with replacement only.)

The method is exact as long as a state's row is the same each time it is computed.  Rows of an engine that is not
batch-invariant differ by rounding; then the order of samples shifts by as much, and what an earlier sample took is
still never drawn again unnoticed (:attr:`DistinctSample.repeats`).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hive.logits_cache.head import Head
from hive.logits_cache.sampling import SamplingRule, kept_in_head

EXHAUSTED = 1e-12
"""A state with no more probability left than this is used up."""

ROUNDING = 1e-12
"""What is left over after subtracting probabilities from a sum is taken for a rounding error up to here."""

NODE_BYTES = 400
"""Bytes charged per token that a sample took: object, three floats, children's table and the entry in its parent's.
Measured with tracemalloc over 200,000 nodes of paths that rarely branch (386 bytes each in CPython 3.11)."""

TREE_BYTES = 500
"""Bytes charged per tree beside its nodes (one of them the root), with its place in :class:`DistinctTrees`; measured
likewise (a tree without samples: 810 bytes)."""


_Key: TypeAlias = tuple[bytes, SamplingRule]


class Drawn(NamedTuple):
    """A token drawn from what earlier samples left; ``sample.advance(*drawn)`` takes it."""

    token: int
    probability: float
    """Under the rule, as if nothing had been used up: in (0, 1]."""
    untaken: float
    """Probability under the rule of all tokens that neither this nor an earlier sample took here."""


@dataclass(slots=True, eq=False)
class _Node:
    """A token that some sample took, and the state behind it."""

    probability: float
    remaining: float = 1.0
    """Share of the outputs behind this token, by probability, that no sample used up: 0 exactly when none is left,
    since it is added up from what is left and never by subtracting from 1."""
    untaken: float = 1.0
    """Probability of the next tokens that no sample took."""
    children: dict[int, _Node] | None = None

    def left(self) -> float:
        mass = sum(child.probability * child.remaining for child in (self.children or {}).values())
        return min(self.untaken + mass, 1.0)

    def size(self) -> int:
        """Nodes in this subtree. A loop, since outputs are deeper than Python's stack."""
        count, pending = 0, [self]
        while pending:
            node = pending.pop()
            count += 1
            pending += (node.children or {}).values()
        return count


@dataclass(frozen=True, slots=True)
class _Step:
    token: int
    probability: float
    untaken: float | None


class DistinctTree:
    """What the samples of one state took, under one sampling rule.

    A tree belongs to everything that shapes the distribution of whole outputs: the state and the rule, and also the
    length limit, the stop conditions, the grammar, biases and penalties.  Two requests that differ in any of them
    must not share a tree.
    """

    def __init__(self, rule: SamplingRule, on_finish: Callable[[DistinctTree], None] | None = None) -> None:
        """``on_finish`` is called when a sample has finished: ``nbytes`` may be another one."""
        self.rule = rule
        self._root = _Node(1.0)
        self._nodes = 1
        self._in_flight = False
        self._on_finish = on_finish

    @property
    def remaining(self) -> float:
        """Probability under the rule of all outputs that no sample has returned, in [0, 1]."""
        return self._root.remaining

    @property
    def exhausted(self) -> bool:
        """Whether (all but :data:`EXHAUSTED` of) the probability is used up: further samples repeat earlier ones."""
        return self._root.remaining <= EXHAUSTED

    @property
    def in_flight(self) -> bool:
        """Whether a sample has begun and not finished."""
        return self._in_flight

    @property
    def nbytes(self) -> int:
        """Estimated size in bytes."""
        return TREE_BYTES + NODE_BYTES * self._nodes

    def sample(self) -> DistinctSample:
        """Begin the state's next sample.  One at a time: what it takes must be known before the next one draws."""
        assert not self._in_flight, "the state's previous sample has not finished"
        self._in_flight = True
        return DistinctSample(self)

    def check_integrity(self) -> None:
        """Raise AssertionError unless counts and masses agree throughout the tree."""
        assert self._nodes == self._root.size(), "count of nodes"
        pending = [self._root]
        while pending:
            node = pending.pop()
            assert 0.0 <= node.remaining <= 1.0, "a share outside [0, 1]"
            assert 0.0 <= node.untaken <= 1.0, "a probability outside [0, 1]"
            assert 0.0 < node.probability <= 1.0, "a taken token without probability"
            if node.remaining == 0.0:
                assert not node.children, "a used-up node keeps its children"
            else:
                assert node.remaining == node.left(), "a share that is not the sum of its parts"
            pending += (node.children or {}).values()

    def _commit(self, steps: list[_Step]) -> None:
        """Use up the output (or the whole subtree) at the end of a path from the root."""
        path = [self._root]
        for step in steps:
            node = path[-1]
            if node.children is None:
                node.children = {}
            child = node.children.get(step.token)
            if step.untaken is not None:
                node.untaken = step.untaken
            elif child is None:
                rest = node.untaken - step.probability
                node.untaken = rest if rest > ROUNDING else 0.0
            if child is None:
                child = node.children[step.token] = _Node(step.probability)
                self._nodes += 1
            path.append(child)
        self._use_up(path.pop())
        for node in reversed(path):
            node.remaining = node.left()
            if node.remaining == 0.0:
                self._use_up(node)

    def _use_up(self, node: _Node) -> None:
        self._nodes -= node.size() - 1
        node.children = None
        node.remaining = node.untaken = 0.0


class DistinctSample:
    """One sample's way from the state to its leaf.

    For each token: :meth:`draw` from the kept head, or, where that gives None, a live draw with :meth:`factors`;
    then :meth:`advance`.  At the end :meth:`finish`, always.
    """

    __slots__ = ("_finished", "_log_probability", "_node", "_steps", "_tree", "repeats")

    def __init__(self, tree: DistinctTree) -> None:
        self._tree = tree
        self._node: _Node | None = tree._root
        self._steps: list[_Step] = []
        self._log_probability = 0.0
        self._finished = False
        self.repeats = tree.exhausted
        """Whether nothing new was left to draw: the sample is an ordinary one and may equal an earlier one."""

    @property
    def log_probability(self) -> float:
        """Natural logarithm of the sample's probability under the rule so far, as if it were the state's first."""
        return self._log_probability

    @property
    def follows_another(self) -> bool:
        """Whether an earlier sample took all the tokens so far, and some further one: what is drawn next must leave
        out what that one used up."""
        return bool(self._taken())

    def factors(self) -> dict[int, float]:
        """What a live draw here multiplies the taken tokens' weights with, after truncation: token -> [0, 1].

        Tokens that are not mentioned have factor 1.  If every weight becomes 0, the live draw ignores the factors.
        """
        return {token: child.remaining for token, child in self._taken().items()}

    def draw(self, head: Head, u: float) -> Drawn | None:
        """The token that ``u`` in [0, 1) selects from what is left of the row behind ``head``, in the sampler's
        order; None when the head does not decide it, or not the token's probability.

        Every answer is the one the whole row would give.  A complete head always answers.
        """
        return _draw(head, self._tree.rule, self._taken(), u)

    def advance(self, token: int, probability: float, untaken: float | None = None) -> None:
        """Append a drawn token.

        ``probability`` (float64) is the token's under the rule, after truncation and before factors.  ``untaken``
        is that of all tokens that no sample took here, this one included; without it, it is what subtraction
        leaves, and anything below :data:`ROUNDING` is lost.  ValueError for a probability outside (0, 1], beyond
        rounding in single precision: the row was broken.
        """
        if not 0.0 < probability <= 1.0 + 1e-6:
            raise ValueError(f"probability of token {token} must be in (0, 1], got {probability}")
        probability = min(probability, 1.0)
        self._log_probability += math.log(probability)
        if self.repeats:
            return
        child = self._taken().get(token)
        if child is not None and child.remaining == 0.0:
            # A live row with nothing left, where the tree expected a rest: the node is used up and this sample is
            # an ordinary one.
            self.repeats = True
            return
        self._steps.append(_Step(token, probability, untaken))
        self._node = child

    def finish(self, ended: bool) -> None:
        """End the sample.  ``ended`` says that it is a leaf (finish reason stop or length) and so is used up; an
        aborted sample uses up nothing and leaves nothing behind."""
        assert not self._finished, "finished twice"
        self._finished = True
        self._tree._in_flight = False
        if ended:
            self._tree._commit(self._steps)
        if self._tree._on_finish is not None:
            self._tree._on_finish(self._tree)

    def _taken(self) -> Mapping[int, _Node]:
        if self.repeats or self._node is None:
            return {}
        return self._node.children or {}


class DistinctTrees:
    """Trees by state under a byte budget, forgetting the least recently sampled.

    A forgotten state starts afresh: its next sample may equal one from before.  No other state notices.
    Not thread-safe: it lives on the scheduler's thread.
    """

    def __init__(self, capacity_bytes: int) -> None:
        if capacity_bytes <= 0:
            raise ValueError(f"capacity_bytes must be positive, got {capacity_bytes}")
        self.capacity_bytes = capacity_bytes
        self.nbytes = 0
        self.forgotten = 0
        """Trees dropped for want of room."""
        self._trees: OrderedDict[_Key, DistinctTree] = OrderedDict()
        self._sizes: dict[_Key, int] = {}

    def __len__(self) -> int:
        return len(self._trees)

    def sample(self, digest: bytes, rule: SamplingRule) -> DistinctSample:
        """Begin the next sample of a state, which becomes the most recently used.

        ``digest`` names the state and whatever else decides where an output ends (see :class:`DistinctTree`).
        None of its samples may be in flight: see :meth:`in_flight`.
        """
        key = (digest, rule)
        tree = self._trees.get(key)
        if tree is None:
            tree = self._trees[key] = DistinctTree(rule, partial(self._account, key))
        self._trees.move_to_end(key)
        sample = tree.sample()
        self._account(key, tree)
        return sample

    def in_flight(self, digest: bytes, rule: SamplingRule) -> bool:
        """Whether the state's next sample has to wait for an earlier one."""
        tree = self._trees.get((digest, rule))
        return tree is not None and tree.in_flight

    def resize(self, capacity_bytes: int) -> None:
        """Change the budget, down to nothing, and forget what is above it."""
        self.capacity_bytes = max(0, capacity_bytes)
        self._evict()

    def clear(self) -> None:
        """Forget everything (weights changed, or the operator flushed).  Samples in flight go on undisturbed."""
        self._trees.clear()
        self._sizes.clear()
        self.nbytes = 0

    def check_integrity(self) -> None:
        """Raise AssertionError unless every tree is sound, the bytes add up and the budget holds.

        Trees with a sample in flight stay, whatever the budget.
        """
        for tree in self._trees.values():
            tree.check_integrity()
        assert self._sizes == {key: tree.nbytes for key, tree in self._trees.items()}, "sizes"
        assert self.nbytes == sum(self._sizes.values()), "bytes"
        idle = any(not tree.in_flight for tree in self._trees.values())
        assert self.nbytes <= self.capacity_bytes or not idle, "over budget"

    def _account(self, key: _Key, tree: DistinctTree) -> None:
        if self._trees.get(key) is not tree:
            return  # forgotten while its sample was in flight
        self.nbytes += tree.nbytes - self._sizes.get(key, 0)
        self._sizes[key] = tree.nbytes
        self._evict()

    def _evict(self) -> None:
        if self.nbytes <= self.capacity_bytes:
            return
        for oldest, candidate in list(self._trees.items()):
            if not candidate.in_flight:
                del self._trees[oldest]
                self.nbytes -= self._sizes.pop(oldest)
                self.forgotten += 1
                if self.nbytes <= self.capacity_bytes:
                    return


@dataclass(frozen=True, slots=True)
class _Kept:
    """The part of a rule's kept set that a head knows."""

    weights: NDArray[np.float64]
    """Of the kept tokens in the head, the row's first token's being 1."""
    mass: float
    """Sum of the weights of the whole kept set."""
    whole: bool
    """Whether the kept set ends inside the head."""


def _keep(head: Head, rule: SamplingRule, at: NDArray[np.intp], known: NDArray[np.float64]) -> _Kept | None:
    """What the rule keeps of a row; None if the head does not tell how much that is.

    ``known`` are the probabilities of the head's tokens at the indices ``at``.
    """
    weights = head.weights(rule.temperature)
    cumulative = np.cumsum(weights)
    low, high = head.normaliser_bounds(rule.temperature, weights)
    sizes, inside = zip(
        *(kept_in_head(head, weights, cumulative, rule, normaliser) for normaliser in (low, high)),
        strict=True,
    )
    if all(inside) and sizes[0] == sizes[1]:
        return _Kept(weights[: sizes[0]], float(cumulative[sizes[0] - 1]), True)
    if any(inside):
        return None
    if rule.top_k >= head.support and not rule.truncates and low == high:
        return _Kept(weights, low, False)
    if len(at):
        # Nobody summed this row at this temperature, or the cut lies in the tail; but the probability of a token
        # that was taken here tells the sum.
        mass = float(weights[at[0]] / known[0])
        if cumulative[-1] <= mass <= high:
            return _Kept(weights, mass, False)
    return None


def _draw(head: Head, rule: SamplingRule, taken: Mapping[int, _Node], u: float) -> Drawn | None:
    if len(head.ids) == 0:
        return None
    at, which = _matches(head.ids, np.fromiter(taken, dtype=np.int32, count=len(taken)))
    probabilities = np.array([child.probability for child in taken.values()])
    remaining = np.array([child.remaining for child in taken.values()])
    kept = _keep(head, rule, at, probabilities[which])
    if kept is None:
        return None
    size = len(kept.weights)
    residual, untaken = kept.weights.copy(), kept.weights.copy()
    at, which = at[at < size], which[at < size]
    residual[at] *= remaining[which]
    untaken[at] = 0.0
    tail = tail_untaken = 0.0
    if not kept.whole:
        # Tokens beyond the head: all their probability is known, and that of those that were taken. A recorded sum
        # may be off by more than rounding; where no token is left, no rest is believed.
        probabilities[which] = 0.0
        rest = kept.mass * (1.0 - float(probabilities.sum())) - float(kept.weights.sum())
        others = head.support - size - (len(taken) - len(which))
        tail_untaken = rest if rest > ROUNDING * kept.mass and others > 0 else 0.0
        tail = tail_untaken + kept.mass * float(probabilities @ remaining)
    cumulative = np.cumsum(residual)
    total = float(cumulative[-1]) + tail
    if total == 0.0 and kept.whole:
        residual, cumulative, total = kept.weights, np.cumsum(kept.weights), kept.mass
    index = int(np.searchsorted(cumulative, u * total, side="right"))
    if index == size:
        if not kept.whole:
            return None
        index = int(np.flatnonzero(residual)[-1])
    untaken[index] = 0.0
    return Drawn(
        int(head.ids[index]),
        float(kept.weights[index]) / kept.mass,
        min((float(untaken.sum()) + tail_untaken) / kept.mass, 1.0),
    )


def _matches(ids: NDArray[np.int32], tokens: NDArray[np.int32]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Indices into two arrays without duplicates where they hold the same value."""
    if len(tokens) == 0:
        nowhere = np.zeros(0, dtype=np.intp)
        return nowhere, nowhere
    order = tokens.argsort()
    place = tokens[order].searchsorted(ids)
    place[place == len(tokens)] = 0
    candidates = order[place]
    (at,) = np.nonzero(tokens[candidates] == ids)
    return at, candidates[at]
