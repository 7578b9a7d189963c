"""Where the KV of each answer to a state ends, so that a client can discard an answer that it does not continue."""

from __future__ import annotations

import weakref
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglang.srt.mem_cache.radix_cache import TreeNode

MAX_STATES = 16384
"""States whose answers are known; the oldest session's are forgotten first."""
MAX_SAMPLES = 1024
"""Answers that are known of one state, with those to its parts; the oldest is forgotten first."""

_Answers = deque[tuple[str, int, Any]]
"""States, samples, and weak references to the last nodes of their KV."""


class Branches:
    """The last nodes of answers in the radix tree, by session and state. It keeps no node alive."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, OrderedDict[str, _Answers]] = OrderedDict()
        self._states = 0

    def __len__(self) -> int:
        """Number of states."""
        return self._states

    def add(self, session: str, state: str, sample: int, node: TreeNode) -> None:
        """Note where the KV of an answer ends."""
        states = self._sessions.setdefault(session, OrderedDict())
        base = _base(state)
        if base not in states:
            states[base] = deque(maxlen=MAX_SAMPLES)
            self._states += 1
        states[base].append((state, sample, weakref.ref(node)))
        self._sessions.move_to_end(session)
        if self._states > MAX_STATES:
            oldest = next(iter(self._sessions))
            self._sessions[oldest].popitem(last=False)
            self._states -= 1
            if not self._sessions[oldest]:
                del self._sessions[oldest]

    def take(self, session: str, state: str, sample: int | None) -> list[TreeNode]:
        """Return the last nodes of answers to a state and to its parts (``state/...``), and forget them.

        ``sample`` selects one answer; None stands for all of them.
        """
        states = self._sessions.get(session)
        answers = None if states is None else states.get(_base(state))
        if answers is None:
            return []
        nodes, others = [], []
        for answer in answers:
            name, number, reference = answer
            meant = name == state or name.startswith(f"{state}/")
            if not meant or sample not in (None, number):
                others.append(answer)
            elif (node := reference()) is not None:
                nodes.append(node)
        answers.clear()
        answers.extend(others)
        return nodes

    def end_session(self, session: str) -> None:
        """Forget the answers of a session."""
        self._states -= len(self._sessions.pop(session, ()))


def _base(state: str) -> str:
    return state.partition("/")[0]
