"""Which tokens of a trace are the same: the radix tree of all that its requests ever put into a cache."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from bench.traces.trace import Tokens, Trace

Sequence64 = npt.NDArray[np.int64]


class PrefixTree:
    """The tree, as lists by the number of a node: nothing in it changes once it is built.

    Attributes:
        sizes: tokens of each node.
        ends: distance of each node's end from the root, in tokens.
        prompts: for each request the nodes that its prompt consists of, in order; the last one is its last token.
        kept: the same for all that a cache may keep of it.
    """

    def __init__(self, trace: Trace) -> None:
        root = _Node(np.empty(0, np.int64), 0)
        prompts = [_array(request.prompt) for request in trace.requests]
        kept = [_array(request.kept) for request in trace.requests]
        for prompt, whole in zip(prompts, kept, strict=True):
            # Not only the whole: nodes have to end where the prompt does, and before its last token.
            root.insert(prompt[:-1])
            root.insert(prompt)
            if len(whole) > len(prompt):
                root.insert(whole)
        self.sizes: list[int] = []
        self.ends: list[int] = []
        for number, node in enumerate(root.below()):
            node.number = number
            self.sizes.append(len(node.key))
            self.ends.append(node.start + len(node.key))
        self.prompts = [root.path(prompt) for prompt in prompts]
        self.kept = [
            root.path(whole) if len(whole) > len(prompt) else path
            for prompt, whole, path in zip(prompts, kept, self.prompts, strict=True)
        ]

    def tokens(self, nodes: Iterable[int]) -> int:
        """How many tokens some nodes have."""
        return sum(self.sizes[node] for node in nodes)


class _Node:
    """A stretch of tokens that is always found whole, while the tree grows."""

    __slots__ = ("children", "key", "number", "start")

    def __init__(self, key: Sequence64, start: int) -> None:
        self.key = key
        self.start = start
        """Distance from the root, in tokens."""
        self.children: dict[int, _Node] = {}
        self.number = -1

    def insert(self, tokens: Sequence64) -> None:
        """Add a sequence below the root, which this is."""
        node, at = self, 0
        while at < len(tokens):
            child = node.children.get(int(tokens[at]))
            if child is None:
                node.children[int(tokens[at])] = _Node(tokens[at:], at)
                return
            same = _common(child.key, tokens[at:])
            if same < len(child.key):
                child._split(same)
            node, at = child, at + same

    def _split(self, at: int) -> None:
        rest = _Node(self.key[at:], self.start + at)
        rest.children = self.children
        self.key = self.key[:at]
        self.children = {int(rest.key[0]): rest}

    def below(self) -> Iterable[_Node]:
        """All nodes but this one."""
        waiting = list(self.children.values())
        while waiting:
            node = waiting.pop()
            yield node
            waiting += node.children.values()

    def path(self, tokens: Sequence64) -> list[int]:
        """The numbers of the nodes of a sequence that was inserted."""
        node, at = self, 0
        found: list[int] = []
        while at < len(tokens):
            node = node.children[int(tokens[at])]
            found.append(node.number)
            at += len(node.key)
        return found


def common_prefix(one: Tokens, other: Tokens) -> int:
    """How many tokens the beginnings of two sequences share."""
    return _common(_array(one), _array(other))


def _array(tokens: Tokens) -> Sequence64:
    return np.frombuffer(tokens, np.int64) if tokens else np.empty(0, np.int64)


def _common(one: Sequence64, other: Sequence64) -> int:
    """Length of the common prefix."""
    length = min(len(one), len(other))
    different = np.flatnonzero(one[:length] != other[:length])
    return int(different[0]) if len(different) else length
