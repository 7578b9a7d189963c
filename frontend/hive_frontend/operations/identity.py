"""Ids and seeds of states and calls.

A state is identified by its path: the number of its root, then the sample number of every firing that led to it. The
paths of an agent that runs within a transition of another one (a child, a voter) extend that transition's path with a
negative number, -1 for the first such agent. All randomness of a call derives from the run's seed and this path, never
from the order in which calls finish.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from hashlib import blake2b

Path = tuple[int, ...]

PIECE = 64
"""Path numbers that states store in one piece. Longer paths share their first pieces, and their ids and seeds derive
from those of the previous path. Otherwise memory and time of a branch would grow with the square of its length."""

_MAX_PLAIN_ID = 96


def state_id(path: Sequence[int]) -> str:
    """Return the id of the state with this path, such as `0.3.0`; a digest if the path is too long for the wire."""
    plain = ".".join(map(str, path))
    if len(plain) <= _MAX_PLAIN_ID:
        return plain
    return f"h:{blake2b(plain.encode(), digest_size=16).hexdigest()}"


def next_id(before: str, path: Sequence[int]) -> str:
    """Return `state_id(path)`, given the id of the previous state on the path."""
    plain = f"{before}.{path[-1]}"
    return plain if len(plain) <= _MAX_PLAIN_ID and not before.startswith("h:") else state_id(path)


class LongPath:
    """Incremental hashes of a path longer than `PIECE`, from which ids and seeds derive.

    The results are equal to those of `state_id` and `call_seed` for the whole path.
    """

    __slots__ = ("_id", "_seed")

    def __init__(self, run_seed: int, path: Path) -> None:
        plain = ".".join(map(str, path))
        self._id = blake2b(plain.encode(), digest_size=16)
        self._seed = blake2b(f"{run_seed}|{plain}".encode(), digest_size=8)

    def then(self, step: int) -> LongPath:
        """Return the hashes of the path extended by one number."""
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
        """Return the base seed of a call in the transitions of that state."""
        seed = self._seed.copy()
        seed.update(f"|{call}|{'' if firing is None else firing}".encode())
        return int.from_bytes(seed.digest(), "big") >> 1


@functools.lru_cache(maxsize=256)
def call_seed(run_seed: int, path: Path, call: str, firing: int | None = None) -> int:
    """Return the base seed of the samples of the request `call` in the transitions of a state.

    With a `firing` the seed is for this firing only: for calls that number their samples themselves.
    """
    text = f"{run_seed}|{'.'.join(map(str, path))}|{call}|{'' if firing is None else firing}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
