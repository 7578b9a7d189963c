"""Names and seeds: how agents, states and samples are identified to the server.

A state is identified by its path: the number of its root, then the sample number of every firing that led
to it. The states of an agent that runs within a transition of another one (a child, a voter) go on from that
transition's path with a negative number, -1 for the first of them. Everything random about a call derives
from the run's seed and this path, never from the order in which calls happen to finish.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from hashlib import blake2b

Path = tuple[int, ...]

PIECE = 64
"""Numbers of a path that states hold in one piece. Longer paths share the pieces that they begin with, and what
derives from them derives from that of the path before: or a branch of many states would take room and time that
grow with their square."""

_MAX_PLAIN_ID = 96


def state_id(path: Sequence[int]) -> str:
    """The state's identity in one word, such as `0.3.0`; paths too long for the wire become a digest."""
    plain = ".".join(map(str, path))
    if len(plain) <= _MAX_PLAIN_ID:
        return plain
    return f"h:{blake2b(plain.encode(), digest_size=16).hexdigest()}"


def next_id(before: str, path: Sequence[int]) -> str:
    """`state_id(path)`, given that of the state before it on the path."""
    plain = f"{before}.{path[-1]}"
    return plain if len(plain) <= _MAX_PLAIN_ID and not before.startswith("h:") else state_id(path)


class LongPath:
    """What ids and seeds derive from on a path that is longer than a `PIECE`, by hashes that are gone on with.

    It gives what `state_id` and `call_seed` give for the whole path.
    """

    __slots__ = ("_id", "_seed")

    def __init__(self, run_seed: int, path: Path) -> None:
        plain = ".".join(map(str, path))
        self._id = blake2b(plain.encode(), digest_size=16)
        self._seed = blake2b(f"{run_seed}|{plain}".encode(), digest_size=8)

    def then(self, step: int) -> LongPath:
        """That of the path with one more number."""
        after = LongPath.__new__(LongPath)
        more = f".{step}".encode()
        after._id, after._seed = self._id.copy(), self._seed.copy()
        after._id.update(more)
        after._seed.update(more)
        return after

    @property
    def id(self) -> str:
        """The id of the state with this path."""
        return f"h:{self._id.hexdigest()}"

    def call_seed(self, call: str, firing: int | None = None) -> int:
        """The base seed of a call in the transitions of that state."""
        seed = self._seed.copy()
        seed.update(f"|{call}|{'' if firing is None else firing}".encode())
        return int.from_bytes(seed.digest(), "big") >> 1


@functools.lru_cache(maxsize=256)
def call_seed(run_seed: int, path: Path, call: str, firing: int | None = None) -> int:
    """The base seed of the samples of one call: of the request `call` in the transitions of a state.

    With a `firing` it is that of this firing alone, for calls that number their samples themselves.
    """
    text = f"{run_seed}|{'.'.join(map(str, path))}|{call}|{'' if firing is None else firing}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
