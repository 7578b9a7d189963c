"""The distributions by state, in host memory under a byte budget.

A state is a namespace (model, adapter, tenant: whatever changes the logits beside the tokens) and the tokens so
far.  A :class:`Node` keeps the distribution of the next token there and the nodes of the tokens that earlier
requests took.  Nodes are found by child pointer while a request is replayed, and by a digest of the whole
prefix where it enters, so a prompt may end anywhere inside an earlier output.  (The paper keeps one trajectory
per prompt; a trie serves every branch anyone explored.)
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hive.logits_cache.head import Head

NODE_OVERHEAD = 1000
"""Bytes charged per node beside its head's arrays: object, digest, index entry, array headers and child link.
Measured with tracemalloc over 40,000 nodes (965 bytes each in CPython 3.11) and rounded up."""


class PrefixHash:
    """Running digest of a namespace and a token prefix."""

    __slots__ = ("_hash",)

    def __init__(self, namespace: str, tokens: Sequence[int]) -> None:
        self._hash = hashlib.blake2b(namespace.encode() + b"\0", digest_size=16)
        self._hash.update(np.asarray(tokens, dtype=np.int64).tobytes())

    def push(self, token: int) -> None:
        """Extend the prefix by one token."""
        self._hash.update(int(token).to_bytes(8, "little", signed=True))

    def digest(self) -> bytes:
        """16 bytes naming the state; collisions are as likely as in any 128-bit hash: never in practice."""
        return self._hash.digest()


@dataclass(slots=True, eq=False)
class Node:
    """One state: its next-token distribution and the continuations explored from it."""

    digest: bytes
    head: Head
    parent: Node | None
    token: int
    """The token that led here from ``parent``."""
    children: dict[int, Node] | None = None

    def child(self, token: int) -> Node | None:
        return None if self.children is None else self.children.get(token)

    @property
    def nbytes(self) -> int:
        return NODE_OVERHEAD + self.head.nbytes


class LogitsTrie:
    """A byte-bounded map from states to distributions, evicting least recently used subtrees from their tips.

    Not thread-safe: it lives on the scheduler's thread.
    """

    def __init__(self, capacity_bytes: int) -> None:
        if capacity_bytes <= 0:
            raise ValueError(f"capacity_bytes must be positive, got {capacity_bytes}")
        self.capacity_bytes = capacity_bytes
        self.nbytes = 0
        self.evicted_nodes = 0
        # In order of last use. A path is always touched from its tip up, so a parent outlives its children.
        self._nodes: OrderedDict[bytes, Node] = OrderedDict()

    def __len__(self) -> int:
        return len(self._nodes)

    def find(self, digest: bytes) -> Node | None:
        """The node of a state, without counting it as used."""
        return self._nodes.get(digest)

    def insert(
        self, namespace: str, prompt: Sequence[int], output: Sequence[int], heads: Mapping[int, Head]
    ) -> int:
        """Write a finished request back.

        ``heads[i]`` is the distribution that ``output[i]`` was drawn from.  Where one is missing (it was neither
        recorded nor known before), the path ends: what lies below could not be reached.  Returns the number of
        new nodes.
        """
        prefix = PrefixHash(namespace, prompt)
        path: list[Node] = []
        created = 0
        parent: Node | None = None
        for i, token in enumerate(output):
            digest = prefix.digest()
            node = self._nodes.get(digest)
            head = heads.get(i)
            if node is None:
                if head is None:
                    break
                node = Node(digest, head, parent, output[i - 1] if i else -1)
                self._nodes[digest] = node
                self.nbytes += node.nbytes
                created += 1
            elif head is not None:
                self._learn(node, head)
            if parent is not None and node.parent is not parent:
                node.parent, node.token = parent, output[i - 1]
            if parent is not None:
                if parent.children is None:
                    parent.children = {}
                parent.children[output[i - 1]] = node
            path.append(node)
            parent = node
            prefix.push(token)
        self.touch(path)
        self._evict()
        return created

    def touch(self, path: Sequence[Node]) -> None:
        """Mark nodes as used; ``path`` runs from the root side to the tip."""
        for node in reversed(path):
            if node.digest in self._nodes:
                self._nodes.move_to_end(node.digest)

    def clear(self) -> None:
        """Forget everything (weights changed, or the operator flushed)."""
        self._nodes.clear()
        self.nbytes = 0

    def _learn(self, node: Node, head: Head) -> None:
        """Keep the first distribution recorded for a state, and add what is new: further normalisers.

        Two passes over one state differ in rounding, so normalisers are taken over only if the logits are the
        same; otherwise the newer row wins, for it knows the temperature in use.
        """
        known = node.head.normalisers
        if all(temperature in known for temperature in head.normalisers):
            return
        before = node.nbytes
        same = len(head.ids) == len(node.head.ids) and np.array_equal(head.logits, node.head.logits)
        node.head = node.head.merged_with(head.normalisers) if same else head
        self.nbytes += node.nbytes - before

    def _evict(self) -> None:
        while self.nbytes > self.capacity_bytes and self._nodes:
            _, node = self._nodes.popitem(last=False)
            self.nbytes -= node.nbytes
            self.evicted_nodes += 1
            parent = node.parent
            if parent is not None and parent.children is not None and parent.children.get(node.token) is node:
                del parent.children[node.token]
            for child in (node.children or {}).values():
                if child.parent is node:
                    child.parent = None
            # A cycle with a parent that outlives this node would keep both alive until the next full collection.
            node.parent = node.children = None

    def check_integrity(self) -> None:
        """Raise AssertionError unless bytes, links and index agree."""
        assert self.nbytes == sum(node.nbytes for node in self._nodes.values()), "bytes"
        assert self.nbytes <= self.capacity_bytes, "over budget"
        for digest, node in self._nodes.items():
            assert node.digest == digest, "index"
            for token, child in (node.children or {}).items():
                assert self._nodes.get(child.digest) is child, "a child that is not in the index"
                assert child.parent is node, "a child of another parent"
                assert child.token == token, "a child under another token"
            if node.parent is not None:
                assert node.parent.child(node.token) is node, "a parent that does not know its child"
