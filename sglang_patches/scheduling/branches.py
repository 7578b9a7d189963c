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
"""Samples of one state whose answers are known; the oldest is forgotten first."""
MAX_PARTS = 64
"""Answers that are known of one sample: to the state, and to its parts."""

_Answers = OrderedDict[int, deque[tuple[str, Any]]]
"""By sample: states, and weak references to the last nodes of their KV."""


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
            states[base] = OrderedDict()
            self._states += 1
        answers = states[base]
        answers.setdefault(sample, deque(maxlen=MAX_PARTS)).append((state, weakref.ref(node)))
        if len(answers) > MAX_SAMPLES:
            answers.popitem(last=False)
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
        nodes = []
        for number in list(answers) if sample is None else [sample]:
            others: list[tuple[str, Any]] = []
            for name, reference in answers.pop(number, ()):
                if name != state and not name.startswith(f"{state}/"):
                    others.append((name, reference))
                elif (node := reference()) is not None:
                    nodes.append(node)
            if others:
                answers[number] = deque(others, MAX_PARTS)
        return nodes

    def end_session(self, session: str) -> None:
        """Forget the answers of a session."""
        self._states -= len(self._sessions.pop(session, ()))


def _base(state: str) -> str:
    return state.partition("/")[0]
