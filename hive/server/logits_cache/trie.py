"""Distributions by state, in host memory within a byte budget.

A state is a namespace (model, adapter, tenant: whatever changes the logits besides the tokens) and the tokens so far.
A :class:`Node` keeps the distribution of the next token and the nodes of the tokens that earlier requests took.
Replay finds its first node by a digest of the whole prefix, so a prompt may end anywhere inside an earlier output, and
the next ones by child pointers.  (The paper keeps one trajectory per prompt; a trie serves every branch that was ever
explored.)
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hive.server.integrity import expect
from hive.server.logits_cache.head import Head
from hive.server.logits_cache.packing import covers, pack, unpack

NODE_OVERHEAD = 300
"""Bytes charged per node besides its packed head: object, digest, index entry, token and the row's bytes header.
Measured with tracemalloc: 250 to 320 bytes each in CPython 3.11, depending on when the index last grew."""

BRANCH_OVERHEAD = 100
"""Bytes charged per child of a node with several: it needs a dict, which grows in steps, instead of a single link."""


MAX_NORMALISERS = 8
"""Temperatures at which a row keeps its normaliser; the first recorded are dropped first."""


class PrefixHash:
    """Running digest of a namespace and a prefix of tokens."""

    __slots__ = ("_hash",)

    def __init__(self, namespace: str, tokens: Sequence[int]) -> None:
        self._hash = hashlib.blake2b(namespace.encode() + b"\0", digest_size=16)
        self._hash.update(np.asarray(tokens, dtype=np.int64).tobytes())

    def push(self, token: int) -> None:
        """Extend the prefix by one token."""
        self._hash.update(int(token).to_bytes(8, "little", signed=True))

    def copy(self) -> PrefixHash:
        """Return an independent copy."""
        twin = object.__new__(PrefixHash)
        twin._hash = self._hash.copy()
        return twin

    def digest(self) -> bytes:
        """Return the 16 bytes that name the state; as with any 128-bit hash, collisions do not occur in practice."""
        return self._hash.digest()


@dataclass(slots=True, eq=False)
class Node:
    """One state: its next-token distribution, and the continuations explored from it."""

    digest: bytes
    row: bytes
    """The packed distribution (:func:`hive.server.logits_cache.packing.pack`)."""
    parent: Node | None
    token: int
    """The token that led here from ``parent``."""
    uncertainty: tuple[float, float] | None = None
    """A temperature and the :func:`hive.server.logits_cache.hotspot.row_uncertainty` there, cached by the hotspot
    policy.
    """
    _children: Node | dict[int, Node] | None = None
    # Nearly every node has one child; a dict for it would cost as much as a row.

    @property
    def head(self) -> Head:
        return unpack(self.row)

    @property
    def children(self) -> list[Node]:
        """The continuations, in the order in which they were first taken."""
        if isinstance(self._children, dict):
            return list(self._children.values())
        return [] if self._children is None else [self._children]

    def child(self, token: int) -> Node | None:
        children = self._children
        if isinstance(children, dict):
            return children.get(token)
        return children if children is not None and children.token == token else None

    def adopt(self, child: Node) -> None:
        """Add a node, whose token is already set, as a continuation of this one."""
        children = self._children
        if isinstance(children, dict):
            children[child.token] = child
        elif children is None or children.token == child.token:
            self._children = child
        else:
            self._children = {children.token: children, child.token: child}

    def disown(self, child: Node) -> None:
        """Remove a continuation."""
        if isinstance(self._children, dict):
            del self._children[child.token]
            if len(self._children) == 1:
                (self._children,) = self._children.values()
        else:
            self._children = None

    def release(self) -> None:
        """Drop all links; a reference cycle with a live node would last until the next full garbage collection."""
        self.parent = self._children = None

    @property
    def nbytes(self) -> int:
        branches = len(self._children) if isinstance(self._children, dict) else 0
        return NODE_OVERHEAD + BRANCH_OVERHEAD * branches + len(self.row)


class LogitsTrie:
    """A byte-bounded map from states to distributions; evicts the least recently used paths from their tips.

    Not thread-safe: only the scheduler's thread uses it.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.nbytes = 0
        self.evicted_nodes = 0
        # In order of last use. A path is always touched from its tip up, so a parent outlives its children.
        self._nodes: OrderedDict[bytes, Node] = OrderedDict()

    def __len__(self) -> int:
        return len(self._nodes)

    def find(self, digest: bytes) -> Node | None:
        """Return the node of a state, without marking it as used; None if it is unknown."""
        return self._nodes.get(digest)

    def insert(
        self, namespace: str, prompt: Sequence[int], output: Sequence[int], rows: Mapping[int, bytes]
    ) -> None:
        """Record the distributions of a whole output; ``output[i]`` was drawn from ``rows[i]``."""
        writer = Writer(self, PrefixHash(namespace, prompt))
        for index, row in sorted(rows.items()):
            writer.write(index, output, row)
        writer.close()

    def put(self, digest: bytes, row: bytes, parent: Node | None, token: int) -> Node:
        """Create or update the node of a state with a packed distribution; ``token`` led here from ``parent``."""
        node = self._nodes.get(digest)
        if node is None:
            node = self._nodes[digest] = Node(digest, row, None, token)
            self.nbytes += node.nbytes
        else:
            self._learn(node, row)
        if parent is not None and node.parent is not parent and self._nodes.get(parent.digest) is parent:
            # The output of one request may have been the prompt of another; then the node was a root.
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

    def resize(self, capacity_bytes: int) -> None:
        """Change the budget, possibly to zero, and evict what exceeds it."""
        self.capacity_bytes = max(0, capacity_bytes)
        self._evict()

    def clear(self) -> None:
        """Drop everything, after a change of weights or on the operator's request."""
        for node in self._nodes.values():
            node.release()
        self._nodes.clear()
        self.nbytes = 0

    def _learn(self, node: Node, row: bytes) -> None:
        """Keep the first distribution recorded for a state, and add new tokens and normalisers to it.

        Two computations of one state differ in rounding, so two heads are merged only if one is a prefix of the other.
        Otherwise the newer head replaces the older one if only the newer knows the temperature in use.
        """
        if covers(node.row, row):
            return
        old, new = node.head, unpack(row)
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
        """Subtract a node that is no longer in the index from the byte count, and unlink its neighbours."""
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
        """Raise IntegrityError unless byte counts, links and index agree."""
        expect(self.nbytes == sum(node.nbytes for node in self._nodes.values()), "bytes")
        expect(self.nbytes <= self.capacity_bytes, "over budget")
        for digest, node in self._nodes.items():
            expect(node.digest == digest, "index")
            for child in node.children:
                expect(self._nodes.get(child.digest) is child, "a child that is not in the index")
                expect(child.parent is node, "a child with another parent")
                expect(node.child(child.token) is child, "a child under another token")
            if node.parent is not None:
                expect(node.parent.child(node.token) is node, "a parent without a link to its child")


class Writer:
    """Records the distributions of one request in the trie as they are drawn, so that others can replay them at once.

    The path ends at a state without a row, which happens if the row cannot be replayed and no other request recorded
    one: nodes below it would be unreachable.
    """

    __slots__ = ("_dead", "_length", "_path", "_prefix", "_trie")

    def __init__(self, trie: LogitsTrie, prefix: PrefixHash) -> None:
        """``prefix`` is the digest of the request's first state; the writer extends it."""
        self._trie, self._prefix = trie, prefix
        self._path: list[Node] = []
        self._length = 0
        self._dead = False

    def write(self, index: int, output: Sequence[int], row: bytes) -> None:
        """Record the packed distribution that ``output[index]`` was drawn from; indices must rise."""
        while self._length < index and not self._dead:
            # Replayed tokens have nodes, unless these were evicted meanwhile.
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
        """Mark the path as the most recently used, from the tip up: the tip will be evicted first."""
        self._trie.touch(self._path)
