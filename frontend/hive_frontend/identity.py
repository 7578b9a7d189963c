"""Names and seeds: how agents, states and samples are identified to the server.

A state is identified by its path: the number of its root, then the sample number of every firing that led
to it. The states of an agent that runs within a transition of another one (a child, a voter) go on from that
transition's path with a negative number, -1 for the first of them. Everything random about a call derives
from the run's seed and this path, never from the order in which calls happen to finish.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from hashlib import blake2b

Path = tuple[int, ...]

_LABEL = re.compile(r"[A-Za-z0-9._:/@-]{1,128}")
_MAX_PLAIN_ID = 96


def check_label(kind: str, label: object) -> str:
    """`label` if a server accepts it as the name of an agent, session or tenant; `ValueError` otherwise."""
    if not isinstance(label, str) or not _LABEL.fullmatch(label):
        raise ValueError(
            f"{kind} must be 1 to 128 characters out of letters, digits and . _ : / @ -, not {label!r}"
        )
    return str(label)


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


@functools.lru_cache(maxsize=256)
def call_seed(run_seed: int, path: Path, call: str, firing: int | None = None) -> int:
    """The base seed of the samples of one call: of the request `call` in the transitions of a state.

    With a `firing` it is that of this firing alone, for calls that number their samples themselves.
    """
    text = f"{run_seed}|{'.'.join(map(str, path))}|{call}|{'' if firing is None else firing}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
