"""Exact sampling without replacement over the outputs of one state.

A search program that samples a state again pays for every duplicate.  A :class:`DistinctTree` remembers which
share of the probability earlier samples of a state used up, along the paths they took and nowhere else; the next
sample is drawn token by token from what is left.  The k-th sample then has exactly the distribution of the k-th
draw without replacement over whole outputs (UniqueRandomizer: Shi, Bieber and Singh, "Incremental Sampling Without
Replacement for Sequence Models", 2020), and its probability under the model is known.  (The paper's section 6
resamples with replacement only.)

Samples are drawn side by side.  At each state a sample first decides whether it follows an earlier one, takes a token
that nobody took, or has to wait: what an earlier sample will have used up behind its token is known when it ends, but
is never more than the probability of the tokens that it has drawn since, and with this bound most decisions are certain
at once (:func:`~hive.server.logits_cache.residual.select`).  So a sample stays behind earlier ones while it agrees
with them, and from where it differs it depends on nobody.  Whatever is decided is what would be decided if samples
were drawn one after the other.  To draw all at once and draw duplicates again would be as exact, but costs the
duplicates, and a stream cannot take back what it sent.

The method is exact as long as a state's row is the same each time it is computed.  Rows of an engine that is not
batch-invariant differ by rounding; then the order of samples shifts by as much, and what an earlier sample took is
still never drawn again unnoticed (:attr:`DistinctSample.repeats`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np

from hive.server.integrity import expect
from hive.server.logits_cache.head import Head
from hive.server.logits_cache.residual import ROUNDING, Drawn, draw, select
from hive.server.logits_cache.sampling import SamplingRule

EXHAUSTED = 1e-12
"""A state with no more probability left than this is used up."""

NODE_BYTES = 400
"""Bytes charged per token that a sample took: object, three floats, children's table and the entry in its parent's.
Measured with tracemalloc over 200,000 nodes of paths that rarely branch (370 bytes each in CPython 3.11)."""


TREE_BYTES = 500
"""Bytes charged per tree beside its nodes (one of them the root), with its place in :class:`DistinctTrees`; measured
likewise (a tree without samples: 810 bytes)."""


class Way(Enum):
    """Where a sample goes from a state, if it follows no earlier one."""

    LEAVES = auto()
    """To a token that no earlier sample took."""
    WAITS = auto()
    """Earlier samples must first go on, or end."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """Which tokens a live draw may choose."""

    tokens: Collection[int]
    only: bool = False
    """These alone; otherwise any but these, if there is one."""


@dataclass(slots=True, eq=False)
class _Node:
    """A token that some sample took, and the state behind it."""

    probability: float
    remaining: float = 1.0
    """Share of the outputs behind this token, by probability, that no sample that ended used up: 0 exactly when none is
    left, since it is added up from what is left and never by subtracting from 1."""
    untaken: float = 1.0
    """Probability of the next tokens that no sample took."""
    children: dict[int, _Node] | None = None
    passing: list[DistinctSample] | None = None
    """Samples in flight whose path leads through here, the eldest first: a younger one never goes ahead."""

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


class DistinctTree:
    """What the samples of one state took, under one sampling rule.

    A tree belongs to everything that shapes the distribution of whole outputs: the state and the rule, and also the
    length limit, the stop conditions, the grammar, biases and penalties.  Two requests that differ in any of them
    must not share a tree.
    """

    def __init__(self, rule: SamplingRule, on_change: Callable[[DistinctTree], None] | None = None) -> None:
        """``on_change`` is called when ``nbytes`` has become another one, and when a sample has finished."""
        self.rule = rule
        self._root = _Node(1.0)
        self._nodes = 1
        self._on_change = on_change

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
        return self._root.passing is not None

    @property
    def nbytes(self) -> int:
        """Estimated size in bytes."""
        return TREE_BYTES + NODE_BYTES * self._nodes

    def sample(self, numbers: Callable[[int], float]) -> DistinctSample:
        """Begin the state's next sample, the youngest.

        ``numbers`` gives, for each count of tokens that the sample has, the uniform number in [0, 1) by which it
        decides whom to follow.  They must be independent of those that its tokens are drawn with.
        """
        return DistinctSample(self, numbers)

    def check_integrity(self) -> None:
        """Raise IntegrityError unless counts and masses agree throughout the tree."""
        expect(self._nodes == self._root.size(), "count of nodes")
        pending = [self._root]
        while pending:
            node = pending.pop()
            expect(0.0 <= node.remaining <= 1.0, "a share outside [0, 1]")
            expect(0.0 <= node.untaken <= 1.0, "a probability outside [0, 1]")
            expect(0.0 < node.probability <= 1.0, "a taken token without probability")
            expect(node.passing != [], "an empty list of samples")
            if node.remaining == 0.0:
                expect(not node.children or node.passing, "a used-up node keeps its children")
            else:
                # Tokens that were taken since it was added up moved from the one summand to the other.
                expect(abs(node.remaining - node.left()) < 1e-9, "a share that is not the sum of its parts")
            pending += (node.children or {}).values()

    def _enter(
        self, sample: DistinctSample, node: _Node, token: int, probability: float, untaken: float | None
    ) -> _Node:
        """The node behind a token that a sample takes."""
        if node.children is None:
            node.children = {}
        child = node.children.get(token)
        if untaken is not None:
            node.untaken = untaken
        elif child is None:
            rest = node.untaken - probability
            node.untaken = rest if rest > ROUNDING else 0.0
        if child is None:
            child = node.children[token] = _Node(probability)
            self._grow(1)
        _pass(child, sample)
        return child

    def _commit(self, path: list[_Node], *, new: bool) -> None:
        """Use up the output at the end of a path from the root; if it is none, just add up again what is left."""
        if new:
            self._use_up(path[-1])
        for node in reversed(path[:-1] if new else path):
            node.remaining = node.left()
            if node.remaining == 0.0:
                self._use_up(node)

    def _use_up(self, node: _Node) -> None:
        node.remaining = node.untaken = 0.0
        # Who is still at a used-up state, to find out that it repeats, ends first.
        if node.passing is None:
            self._grow(1 - node.size())
            node.children = None

    def _prune(self, path: list[_Node], tokens: list[int]) -> None:
        """Forget what only a sample that came to nothing took at the end of its path."""
        for parent, node, token in zip(path[-2::-1], path[:0:-1], reversed(tokens), strict=True):
            if node.passing or node.children or node.remaining < 1.0:
                return
            assert parent.children is not None
            del parent.children[token]
            parent.untaken = min(parent.untaken + node.probability, 1.0)
            if not parent.children:
                parent.children, parent.untaken = None, 1.0
            self._grow(-1)

    def _grow(self, nodes: int) -> None:
        self._nodes += nodes
        if self._on_change is not None:
            self._on_change(self)


def _pass(node: _Node, sample: DistinctSample) -> None:
    if node.passing is None:
        node.passing = []
    node.passing.append(sample)


class DistinctSample:
    """One sample's way from the state to its leaf.

    At each state :attr:`way` says where it goes.  A token to follow is :meth:`following`; to leave, :meth:`draw` one
    from the kept head or, where that gives None, live under the :meth:`constraint`; then :meth:`advance`.  A sample
    that is :attr:`blocked` cannot go to the model.  At the end :meth:`finish`, always.
    """

    __slots__ = ("_finished", "_numbers", "_path", "_probabilities", "_repeats", "_tokens", "_tree", "_way")

    def __init__(self, tree: DistinctTree, numbers: Callable[[int], float]) -> None:
        self._tree = tree
        self._numbers = numbers
        self._path = [tree._root]
        self._tokens: list[int] = []
        self._probabilities = [0.0]
        """Natural logarithms: of the first 0, 1, 2, ... tokens."""
        self._finished = False
        self._repeats: bool | None = None
        self._way: int | Way = Way.WAITS
        _pass(tree._root, self)
        self._settle()

    @property
    def repeats(self) -> bool:
        """Whether nothing new was left to draw: the sample is an ordinary one and may equal an earlier one.

        Settled before the first token.
        """
        return bool(self._repeats)

    @property
    def log_probability(self) -> float:
        """Natural logarithm of the sample's probability under the rule so far, as if it were the state's first."""
        return self._probabilities[-1]

    @property
    def way(self) -> int | Way:
        """Where the sample goes from its state; a token if it follows an earlier sample."""
        if self._way is Way.WAITS:
            self._way = self._decide()
        return self._way

    @property
    def blocked(self) -> bool:
        """Whether only earlier samples can bring this one on: the model may not be asked for its next token.

        After it a sample that follows another one might have to wait, which is not possible in a batch.
        """
        way = self.way
        return way is Way.WAITS or (way is not Way.LEAVES and bool(self._elders()))

    @property
    def follows_another(self) -> bool:
        """Whether an earlier sample took all the tokens so far, and some further one: where to go from here depends on
        what that one used up."""
        return not self._repeats and bool(self._path[-1].children)

    def following(self, token: int) -> Drawn:
        """The token of an earlier sample, as if it were drawn."""
        node = self._path[-1]
        assert node.children is not None
        return Drawn(token, node.children[token].probability, node.untaken)

    def draw(self, head: Head, u: float) -> Drawn | None:
        """A token that nobody took: see :func:`hive.server.logits_cache.residual.draw`.

        None also where the row knows no such token after all: then :attr:`way` is another one.
        """
        node = self._path[-1]
        taken = {} if self._repeats else node.children or {}
        drawn = draw(head, self._tree.rule, {token: child.probability for token, child in taken.items()}, u)
        if drawn is not None and drawn.token in taken:
            node.untaken, self._way = 0.0, Way.WAITS
            return None
        return drawn

    def constraint(self) -> Constraint | None:
        """What a live draw has to heed; None if it is an ordinary one."""
        way = self.way
        if way is Way.WAITS:
            # Only a row that differs from what earlier samples saw leads here: it is too late to wait.
            self._give_up()
        if not self.follows_another:
            return None
        if way is Way.LEAVES:
            return Constraint(self._path[-1].children or {})
        assert isinstance(way, int)
        return Constraint((way,), only=True)

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
        settled = self._settle()
        assert settled, "an earlier sample may leave nothing"
        way, self._way = self._way, Way.WAITS
        self._probabilities.append(self._probabilities[-1] + math.log(probability))
        if self._repeats:
            return
        node = self._path[-1]
        child = (node.children or {}).get(token)
        if child is not None and way is Way.LEAVES:
            # The row knows no other token, where the tree expected a rest.
            node.untaken = 0.0
        if node.remaining == 0.0 or (child is not None and child.remaining == 0.0):
            self._give_up()
            return
        self._path.append(self._tree._enter(self, node, token, probability, untaken))
        self._tokens.append(token)

    def finish(self, ended: bool) -> None:
        """End the sample.  ``ended`` says that it is a leaf (finish reason stop or length) and so is used up; an
        aborted sample uses up nothing and leaves nothing behind."""
        assert not self._finished, "finished twice"
        self._finished = True
        if not self._repeats:
            self._leave()
        if not ended:
            self._tree._prune(self._path, self._tokens)
        else:
            self._tree._commit(self._path, new=not self._repeats)
        self._tree._grow(0)

    def _settle(self) -> bool:
        """Whether it is known if anything new is left to draw."""
        if self._repeats is None:
            root = self._tree._root
            if root.remaining <= EXHAUSTED:
                self._give_up()
            elif root.remaining - sum(elder._claim(0) for elder in self._elders()) > EXHAUSTED:
                self._repeats = False
        return self._repeats is not None

    def _decide(self) -> int | Way:
        if not self._settle():
            return Way.WAITS
        claims = self._claims()
        if claims is None:
            return Way.WAITS
        node = self._path[-1]
        if not self.follows_another:
            return Way.LEAVES
        assert node.children is not None
        masses = [(child.probability, child.remaining) for child in node.children.values()]
        most = np.array([node.untaken, *(probability * remaining for probability, remaining in masses)])
        if not most.any():
            self._give_up()
            return Way.LEAVES
        least = most
        if claims:
            left = [
                max(child.remaining - claims.get(token, 0.0), 0.0) for token, child in node.children.items()
            ]
            least = np.array([node.untaken, *(p * share for (p, _), share in zip(masses, left, strict=True))])
        index = select(least, most, self._numbers(len(self._tokens)))
        if index is None:
            return Way.WAITS
        return list(node.children)[index - 1] if index else Way.LEAVES

    def _give_up(self) -> None:
        """Go on as an ordinary sample."""
        self._repeats = True
        self._leave()

    def _leave(self) -> None:
        """Nobody has to stay behind any more."""
        for node in reversed(self._path):
            assert node.passing is not None
            node.passing.remove(self)
            if not node.passing:
                node.passing = None
                if node.remaining == 0.0:
                    self._tree._use_up(node)

    def _elders(self) -> list[DistinctSample]:
        """Earlier samples in flight that agree with this one so far."""
        passing = self._path[-1].passing
        return passing[: passing.index(self)] if passing and not self._repeats else []

    def _claim(self, depth: int) -> float:
        """The share of the outputs behind its first ``depth`` tokens that it will have used up, at the most."""
        return math.exp(self._probabilities[-1] - self._probabilities[depth])

    def _claims(self) -> dict[int, float] | None:
        """What earlier samples in flight will have used up behind their tokens here, at the most; None when one of them
        has not drawn its token here yet."""
        depth = len(self._tokens)
        claims: dict[int, float] = {}
        for elder in self._elders():
            if len(elder._tokens) == depth:
                return None
            token = elder._tokens[depth]
            claims[token] = claims.get(token, 0.0) + elder._claim(depth + 1)
        return claims
