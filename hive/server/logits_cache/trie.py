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

from hive.server.integrity import expect
from hive.server.logits_cache.head import Head
from hive.server.logits_cache.packing import CorruptRowError, covers, pack, unpack

NODE_OVERHEAD = 300
"""Bytes charged per node beside its packed head: object, digest, index entry, token and the row's bytes header.
Measured with tracemalloc: 250 to 320 bytes each in CPython 3.11, depending on when the index last grew."""

BRANCH_OVERHEAD = 100
"""Bytes charged per child of a node with several: a dict instead of a single link, grown in steps."""


MAX_NORMALISERS = 8
"""Temperatures that a row knows its normaliser at; the first recorded are forgotten first."""


class PrefixHash:
    """Running digest of a namespace and a token prefix."""

    __slots__ = ("_hash",)

    def __init__(self, namespace: str, tokens: Sequence[int]) -> None:
        self._hash = hashlib.blake2b(namespace.encode() + b"\0", digest_size=16)
        self._hash.update(np.asarray(tokens, dtype=np.int64).tobytes())

    def push(self, token: int) -> None:
        """Extend the prefix by one token."""
        self._hash.update(int(token).to_bytes(8, "little", signed=True))

    def copy(self) -> PrefixHash:
        """A digest that goes its own way from here."""
        twin = object.__new__(PrefixHash)
        twin._hash = self._hash.copy()
        return twin

    def digest(self) -> bytes:
        """16 bytes naming the state; collisions are as likely as in any 128-bit hash: never in practice."""
        return self._hash.digest()


@dataclass(slots=True, eq=False)
class Node:
    """One state: its next-token distribution and the continuations explored from it."""

    digest: bytes
    row: bytes
    """The distribution, as :func:`hive.server.logits_cache.packing.pack` wrote it."""
    parent: Node | None
    token: int
    """The token that led here from ``parent``."""
    uncertainty: tuple[float, float] | None = None
    """A temperature and :func:`hive.server.logits_cache.hotspot.row_uncertainty` there, cached by the hotspot
    policy.
    """
    _children: Node | dict[int, Node] | None = None
    # Nearly every node has one child, and a dict for it would cost as much as a row.

    @property
    def head(self) -> Head:
        return unpack(self.row)

    @property
    def children(self) -> list[Node]:
        """The continuations, in the order they were first taken."""
        if isinstance(self._children, dict):
            return list(self._children.values())
        return [] if self._children is None else [self._children]

    def child(self, token: int) -> Node | None:
        children = self._children
        if isinstance(children, dict):
            return children.get(token)
        return children if children is not None and children.token == token else None

    def adopt(self, child: Node) -> None:
        """Make a node, which carries its token already, a continuation of this one."""
        children = self._children
        if isinstance(children, dict):
            children[child.token] = child
        elif children is None or children.token == child.token:
            self._children = child
        else:
            self._children = {children.token: children, child.token: child}

    def disown(self, child: Node) -> None:
        """Forget a continuation."""
        if isinstance(self._children, dict):
            del self._children[child.token]
            if len(self._children) == 1:
                (self._children,) = self._children.values()
        else:
            self._children = None

    def release(self) -> None:
        """Drop all links: a cycle with a node that lives on would wait for the next full collection."""
        self.parent = self._children = None

    @property
    def nbytes(self) -> int:
        branches = len(self._children) if isinstance(self._children, dict) else 0
        return NODE_OVERHEAD + BRANCH_OVERHEAD * branches + len(self.row)


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
        self.corrupt_rows = 0
        """States that were dropped, or recorded anew, because the bytes of their rows had changed."""
        # In order of last use. A path is always touched from its tip up, so a parent outlives its children.
        self._nodes: OrderedDict[bytes, Node] = OrderedDict()

    def __len__(self) -> int:
        return len(self._nodes)

    def find(self, digest: bytes) -> Node | None:
        """The node of a state, without counting it as used."""
        return self._nodes.get(digest)

    def insert(
        self, namespace: str, prompt: Sequence[int], output: Sequence[int], rows: Mapping[int, bytes]
    ) -> None:
        """Write the distributions of a whole output at once; ``rows[i]`` is what ``output[i]`` was drawn from."""
        writer = Writer(self, PrefixHash(namespace, prompt))
        for index, row in sorted(rows.items()):
            writer.write(index, output, row)
        writer.close()

    def put(self, digest: bytes, row: bytes, parent: Node | None, token: int) -> Node:
        """The node of a state, made or taught by a packed distribution; ``token`` led here from ``parent``."""
        node = self._nodes.get(digest)
        if node is None:
            node = self._nodes[digest] = Node(digest, row, None, token)
            self.nbytes += node.nbytes
        else:
            self._learn(node, row)
        if parent is not None and node.parent is not parent and self._nodes.get(parent.digest) is parent:
            # An output of one request may have been the prompt of another: then the node was a root.
            node.parent, node.token = parent, token
            before = parent.nbytes
            parent.adopt(node)
            self.nbytes += parent.nbytes - before
        self._evict()
        return node

    def touch(self, path: Sequence[Node]) -> None:
        """Mark nodes as used; ``path`` runs from the root side to the tip."""
        for node in reversed(path):
            if node.digest in self._nodes:
                self._nodes.move_to_end(node.digest)

    def drop_corrupt(self, node: Node) -> None:
        """Forget a state whose row is not what was recorded; its continuations stay, as roots."""
        if self._nodes.get(node.digest) is node:
            del self._nodes[node.digest]
            self._unlink(node)
            self.corrupt_rows += 1

    def resize(self, capacity_bytes: int) -> None:
        """Change the budget, down to nothing, and evict what is above it."""
        self.capacity_bytes = max(0, capacity_bytes)
        self._evict()

    def clear(self) -> None:
        """Forget everything (weights changed, or the operator flushed)."""
        for node in self._nodes.values():
            node.release()
        self._nodes.clear()
        self.nbytes = 0

    def _learn(self, node: Node, row: bytes) -> None:
        """Keep the first distribution recorded for a state, and add what is new: tokens and normalisers.

        Two passes over one state differ in rounding, so two heads are merged only if one begins with the other;
        otherwise the newer one wins if it knows the temperature in use, which the older one does not.
        """
        if covers(node.row, row):
            return
        try:
            old = node.head
        except CorruptRowError:
            self.nbytes += len(row) - len(node.row)
            self.corrupt_rows += 1
            node.row = row
            return
        new = unpack(row)
        shorter, longer = sorted((old, new), key=lambda head: len(head.ids))
        size = len(shorter.ids)
        same = (
            old.support == new.support
            and np.array_equal(shorter.ids, longer.ids[:size])
            and np.array_equal(shorter.logits, longer.logits[:size])
        )
        known = all(temperature in old.normalisers for temperature in new.normalisers)
        before = node.nbytes
        if same and not (known and longer is old):
            sums = {
                **old.normalisers,
                **{t: z for t, z in new.normalisers.items() if t not in old.normalisers},
            }
            while len(sums) > MAX_NORMALISERS:
                del sums[next(iter(sums))]
            node.row = pack(longer.with_normalisers(sums))
        elif not same and not known:
            node.row = row
        self.nbytes += node.nbytes - before

    def _evict(self) -> None:
        while self.nbytes > self.capacity_bytes and self._nodes:
            _, node = self._nodes.popitem(last=False)
            self.evicted_nodes += 1
            self._unlink(node)

    def _unlink(self, node: Node) -> None:
        """Take a node that is no longer in the index from the books and from its neighbours."""
        self.nbytes -= node.nbytes
        parent = node.parent
        if parent is not None:
            before = parent.nbytes
            parent.disown(node)
            self.nbytes += parent.nbytes - before
        for child in node.children:
            child.parent = None
        node.release()

    def check_integrity(self) -> None:
        """Raise IntegrityError unless bytes, links and index agree."""
        expect(self.nbytes == sum(node.nbytes for node in self._nodes.values()), "bytes")
        expect(self.nbytes <= self.capacity_bytes, "over budget")
        for digest, node in self._nodes.items():
            expect(node.digest == digest, "index")
            for child in node.children:
                expect(self._nodes.get(child.digest) is child, "a child that is not in the index")
                expect(child.parent is node, "a child of another parent")
                expect(node.child(child.token) is child, "a child under another token")
            if node.parent is not None:
                expect(node.parent.child(node.token) is node, "a parent that does not know its child")


class Writer:
    """Writes one request's distributions into the trie as they are drawn, for other requests to replay at once.

    Where a state has no row (it cannot be replayed, and nobody wrote one before), the path ends: what lies below
    could not be reached.
    """

    __slots__ = ("_dead", "_length", "_path", "_prefix", "_trie")

    def __init__(self, trie: LogitsTrie, prefix: PrefixHash) -> None:
        """``prefix`` is that of the request's first state; the writer moves it on."""
        self._trie, self._prefix = trie, prefix
        self._path: list[Node] = []
        self._length = 0
        self._dead = False

    def write(self, index: int, output: Sequence[int], row: bytes) -> None:
        """Keep the packed distribution that ``output[index]`` was drawn from; indices rise."""
        while self._length < index and not self._dead:
            # What was replayed has nodes; they may have been evicted meanwhile.
            node = self._trie.find(self._prefix.digest()) if len(self._path) == self._length else None
            if len(self._path) == self._length:
                if node is None:
                    self._dead = True
                    break
                self._path.append(node)
            self._prefix.push(output[self._length])
            self._length += 1
        if self._dead:
            return
        parent = self._path[-1] if self._path else None
        token = output[index - 1] if index else -1
        self._path.append(self._trie.put(self._prefix.digest(), row, parent, token))

    def close(self) -> None:
        """The request is over: its path is the most recently used, and its tip will go first."""
        self._trie.touch(self._path)
