"""Hook on ``GrammarManager``: the scheduler wakes up as soon as new grammars are compiled."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING
from weakref import WeakSet

if TYPE_CHECKING:
    from sglang.srt.constrained.grammar_manager import GrammarManager
    from sglang.srt.managers.schedule_batch import Req

PATIENCE = 0.002
"""Seconds that a batch waits for new grammars.  Those of short answers take less; for large ones, SGLang's own loop
waits.
"""


def around_get_ready_grammar_requests(original: Callable[..., list[Req]], self: GrammarManager) -> list[Req]:
    """Wait for the grammars of the queue, then return the requests that have theirs.

    SGLang looks whether they are compiled in naps of half a millisecond, which a short regex takes less than.  Each is
    waited for once: a large one must not hold up every step until it is compiled.
    """
    waited: WeakSet[Future[object]] = self.__dict__.setdefault("hive_waited", WeakSet())
    futures = [req.grammar for req in self.grammar_queue if isinstance(req.grammar, Future)]
    if new := [future for future in futures if future not in waited]:
        wait(new, PATIENCE)
        waited.update(new)
    return original(self)
