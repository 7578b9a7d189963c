"""Exact sampling without replacement over the outputs of one state.

A search program that samples a state again pays for every duplicate.  A :class:`DistinctTree` records which share of
the probability earlier samples of a state used up, along the paths that they took.  The next sample is drawn token by
token from the rest.  So the k-th sample has exactly the distribution of the k-th draw without replacement over whole
outputs (UniqueRandomizer: Shi, Bieber and Singh, "Incremental Sampling Without Replacement for Sequence Models",
2020), and its probability under the model is known.  (The paper's section 6 resamples with replacement only.)

Samples are drawn concurrently.  At each state a sample first decides whether to follow an earlier sample, to branch
to a token that no sample took, or to wait.  What an earlier sample will use up behind its token is known only when it
ends, but it is at most the probability of the tokens that it has drawn since.  With this bound most decisions are
certain at once (:func:`~hive.server.logits_cache.residual.select`).  So a sample stays behind earlier ones while it
agrees with them, and is independent of them once it differs.  Every decision is the one that drawing the samples one
after the other would make.  The alternative, to draw all samples at once and to redraw duplicates, would be as exact,
but costs the duplicates, and a stream cannot take back tokens that were sent.

The method is exact as long as a state's row is the same each time it is computed.  On an engine that is not
batch-invariant, rows differ by rounding.  The order of samples then shifts by as much, and a duplicate is still never
drawn without being marked as one (:attr:`DistinctSample.repeats`).
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
"""A state with no more probability left than this counts as used up."""

NODE_BYTES = 400
"""Bytes charged per token that a sample took: object, three floats, children's table and the entry in its parent's.
Measured with tracemalloc over 200,000 nodes of paths that rarely branch (370 bytes each in CPython 3.11)."""


TREE_BYTES = 500
"""Bytes charged per tree besides its nodes (one of them the root), with its entry in :class:`DistinctTrees`; measured
in the same way (a tree without samples: 810 bytes)."""


class Choice(Enum):
    """What a sample does at a state, if it follows no earlier sample."""

    BRANCH = auto()
    """Takes a token that no earlier sample took."""
    WAIT = auto()
    """Waits until earlier samples draw further tokens or end."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """The tokens that a live draw may choose."""

    tokens: Collection[int]
    only: bool = False
    """Whether only these are allowed; otherwise any other is, if there is one."""


@dataclass(slots=True, eq=False)
class _Node:
    """A token that some sample took, and the state behind it."""

    probability: float
    remaining: float = 1.0
    """Share, by probability, of the outputs behind this token that no ended sample used up.  It is exactly 0 when none
    is left, because it is summed from what is left and never computed as 1 minus something."""
    untaken: float = 1.0
    """Probability of the next tokens that no sample took."""
    children: dict[int, _Node] | None = None
    passing: list[DistinctSample] | None = None
    """Samples in flight whose path leads through here, earliest first: a later one never overtakes an earlier one."""

    def left(self) -> float:
        mass = sum(child.probability * child.remaining for child in (self.children or {}).values())
        return min(self.untaken + mass, 1.0)

    def size(self) -> int:
        """Return the number of nodes in this subtree, by a loop: outputs may be longer than Python's stack."""
        count, pending = 0, [self]
        while pending:
            node = pending.pop()
            count += 1
            pending += (node.children or {}).values()
        return count


class DistinctTree:
    """The paths that the samples of one state took, under one sampling rule.

    A tree is specific to everything that shapes the distribution of whole outputs: the state and the rule, but also
    the length limit, the stop conditions, the grammar, biases and penalties.  Requests that differ in any of them must
    not share a tree.
    """

    def __init__(self, rule: SamplingRule, on_change: Callable[[DistinctTree], None] | None = None) -> None:
        """``on_change`` is called whenever ``nbytes`` changes, and when a sample has finished."""
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
        """Whether all but :data:`EXHAUSTED` of the probability is used up: further samples repeat earlier ones."""
        return self._root.remaining <= EXHAUSTED

    @property
    def in_flight(self) -> bool:
        """Whether some sample has begun and not finished."""
        return self._root.passing is not None

    @property
    def nbytes(self) -> int:
        """Estimated size in bytes."""
        return TREE_BYTES + NODE_BYTES * self._nodes

    def sample(self, numbers: Callable[[int], float]) -> DistinctSample:
        """Begin the state's next sample.

        ``numbers`` maps a sample's count of tokens so far to the uniform number in [0, 1) by which it decides which
        sample to follow.  They must be independent of the numbers that its tokens are drawn with.
        """
        return DistinctSample(self, numbers)

    def check_integrity(self) -> None:
        """Raise IntegrityError unless counts and probabilities agree throughout the tree."""
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
                # Tokens taken since the sum was made have only moved from one summand to the other.
                expect(abs(node.remaining - node.left()) < 1e-9, "a share that is not the sum of its parts")
            pending += (node.children or {}).values()

    def _enter(
        self, sample: DistinctSample, node: _Node, token: int, probability: float, untaken: float | None
    ) -> _Node:
        """Return the node behind a token that a sample takes; create it if needed."""
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
        """Use up the output at the end of a path from the root if it is new, and update the shares along the path."""
        if new:
            self._use_up(path[-1])
        for node in reversed(path[:-1] if new else path):
            node.remaining = node.left()
            if node.remaining == 0.0:
                self._use_up(node)

    def _use_up(self, node: _Node) -> None:
        node.remaining = node.untaken = 0.0
        # A sample that is still at a used-up state, and will find that it repeats, needs the children until it ends.
        if node.passing is None:
            self._grow(1 - node.size())
            node.children = None

    def _prune(self, path: list[_Node], tokens: list[int]) -> None:
        """Remove the nodes at the end of the path of an aborted sample that no other sample took."""
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
    """One sample's path from the state to the end of its output.

    At each state :attr:`choice` says what to do.  To follow an earlier sample, take the token of :meth:`following`.  To
    branch, :meth:`draw` a token from the kept head or, if that returns None, draw live under the :meth:`constraint`.
    Then call :meth:`advance`.  A sample that is :attr:`blocked` must not go to the model.  Always call :meth:`finish`
    at the end.
    """

    def __init__(self, tree: DistinctTree, numbers: Callable[[int], float]) -> None:
        self._tree = tree
        self._numbers = numbers
        self._path = [tree._root]
        self._tokens: list[int] = []
        self._probabilities = [0.0]
        """Natural logarithm of the probability of the first 0, 1, 2, ... tokens."""
        self._finished = False
        self._repeats: bool | None = None
        self._choice: int | Choice = Choice.WAIT
        _pass(tree._root, self)
        self._settle()

    @property
    def repeats(self) -> bool:
        """Whether nothing new was left to draw, so that the sample is an ordinary one and may equal an earlier one.

        Decided before the first token.
        """
        return bool(self._repeats)

    @property
    def log_probability(self) -> float:
        """Natural logarithm of the probability of the tokens so far, under the rule and without exclusions."""
        return self._probabilities[-1]

    @property
    def choice(self) -> int | Choice:
        """What the sample does at its state; the token, if it follows an earlier sample."""
        if self._choice is Choice.WAIT:
            self._choice = self._decide()
        return self._choice

    @property
    def blocked(self) -> bool:
        """Whether the sample must wait for earlier ones, and the model must not draw its next token.

        A sample that follows another one might have to wait after that token, which is impossible within a batch.
        """
        choice = self.choice
        return choice is Choice.WAIT or (choice is not Choice.BRANCH and bool(self._earlier()))

    @property
    def follows_another(self) -> bool:
        """Whether earlier samples took all the tokens so far and a further one, so that the next draw depends on what
        they used up."""
        return not self._repeats and bool(self._path[-1].children)

    def following(self, token: int) -> Drawn:
        """Return an earlier sample's token as if it had been drawn."""
        node = self._path[-1]
        assert node.children is not None
        return Drawn(token, node.children[token].probability, node.untaken)

    def draw(self, head: Head, u: float) -> Drawn | None:
        """Return a token that no sample took (see :func:`hive.server.logits_cache.residual.draw`), or None.

        None also if the row turns out to have no such token; then :attr:`choice` has changed.
        """
        node = self._path[-1]
        taken = {} if self._repeats else node.children or {}
        drawn = draw(head, self._tree.rule, {token: child.probability for token, child in taken.items()}, u)
        if drawn is not None and drawn.token in taken:
            node.untaken, self._choice = 0.0, Choice.WAIT
            return None
        return drawn

    def constraint(self) -> Constraint | None:
        """Return the constraint of a live draw; None if there is none."""
        choice = self.choice
        if choice is Choice.WAIT:
            # Reached only if the row differs from the one that earlier samples saw: it is too late to wait.
            self._give_up()
        if not self.follows_another:
            return None
        if choice is Choice.BRANCH:
            return Constraint(self._path[-1].children or {})
        assert isinstance(choice, int)
        return Constraint((choice,), only=True)

    def advance(self, token: int, probability: float, untaken: float | None = None) -> None:
        """Append a drawn token.

        Args:
            token: the token.
            probability: of the token under the rule (float64), after truncation and without exclusions.
            untaken: probability of all tokens that no sample took here, after taking this one.  If it is missing, it
                is found by subtraction, which loses anything below :data:`ROUNDING`.

        Raises:
            ValueError: if the probability is outside (0, 1] by more than rounding in single precision: the row is
                broken.
        """
        if not 0.0 < probability <= 1.0 + 1e-6:
            raise ValueError(f"probability of token {token} must be in (0, 1], got {probability}")
        probability = min(probability, 1.0)
        settled = self._settle()
        assert settled, "whether anything new is left depends on earlier samples"
        choice, self._choice = self._choice, Choice.WAIT
        self._probabilities.append(self._probabilities[-1] + math.log(probability))
        if self._repeats:
            return
        node = self._path[-1]
        child = (node.children or {}).get(token)
        if child is not None and choice is Choice.BRANCH:
            # The row has no other token, although the tree expected one.
            node.untaken = 0.0
        if node.remaining == 0.0 or (child is not None and child.remaining == 0.0):
            self._give_up()
            return
        self._path.append(self._tree._enter(self, node, token, probability, untaken))
        self._tokens.append(token)

    def finish(self, ended: bool) -> None:
        """End the sample.

        ``ended`` says that its output is complete (finish reason stop or length) and so used up.  An aborted sample
        uses up nothing and leaves no nodes behind.
        """
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
        """Whether it is decided if the sample repeats; decides it if possible."""
        if self._repeats is None:
            root = self._tree._root
            if root.remaining <= EXHAUSTED:
                self._give_up()
            elif root.remaining - sum(earlier._most_used(0) for earlier in self._earlier()) > EXHAUSTED:
                self._repeats = False
        return self._repeats is not None

    def _decide(self) -> int | Choice:
        if not self._settle():
            return Choice.WAIT
        most_used = self._most_used_by_token()
        if most_used is None:
            return Choice.WAIT
        node = self._path[-1]
        if not self.follows_another:
            return Choice.BRANCH
        assert node.children is not None
        masses = [(child.probability, child.remaining) for child in node.children.values()]
        most = np.array([node.untaken, *(probability * remaining for probability, remaining in masses)])
        if not most.any():
            self._give_up()
            return Choice.BRANCH
        least = most
        if most_used:
            left = [
                max(child.remaining - most_used.get(token, 0.0), 0.0)
                for token, child in node.children.items()
            ]
            least = np.array([node.untaken, *(p * share for (p, _), share in zip(masses, left, strict=True))])
        index = select(least, most, self._numbers(len(self._tokens)))
        if index is None:
            return Choice.WAIT
        return list(node.children)[index - 1] if index else Choice.BRANCH

    def _give_up(self) -> None:
        """Continue as an ordinary sample, which may repeat an earlier one."""
        self._repeats = True
        self._leave()

    def _leave(self) -> None:
        """Leave the path, so that no sample waits for this one any more."""
        for node in reversed(self._path):
            assert node.passing is not None
            node.passing.remove(self)
            if not node.passing:
                node.passing = None
                if node.remaining == 0.0:
                    self._tree._use_up(node)

    def _earlier(self) -> list[DistinctSample]:
        """Return the earlier samples in flight that agree with this one so far."""
        passing = self._path[-1].passing
        return passing[: passing.index(self)] if passing and not self._repeats else []

    def _most_used(self, depth: int) -> float:
        """Return the largest share of the outputs behind its first ``depth`` tokens that this sample can use up."""
        return math.exp(self._probabilities[-1] - self._probabilities[depth])

    def _most_used_by_token(self) -> dict[int, float] | None:
        """Return, by token, the largest share that earlier samples in flight can use up behind it; None if one of them
        has not drawn its token here yet."""
        depth = len(self._tokens)
        most_used: dict[int, float] = {}
        for earlier in self._earlier():
            if len(earlier._tokens) == depth:
                return None
            token = earlier._tokens[depth]
            most_used[token] = most_used.get(token, 0.0) + earlier._most_used(depth + 1)
        return most_used
