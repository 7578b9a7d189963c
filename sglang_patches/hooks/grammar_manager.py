"""Hook on ``GrammarManager``: a request waits briefly for its new grammar, and the requests behind it share it.

SGLang compiles a new grammar on another thread and looks in the next loop whether it is ready, in naps of half a
millisecond.  A regex of a short answer is compiled in less.  Samples of one prompt come together: each of them would
compile the grammar again, because only a request that leaves the queue puts it into SGLang's cache.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang.srt.constrained.grammar_manager import GrammarManager
    from sglang.srt.managers.schedule_batch import Req

PATIENCE = 0.002
"""Seconds that a request waits for its grammar: a large one must not hold up the scheduler."""


def around_process_req_with_grammar(original: Callable[..., bool], self: GrammarManager, req: Req) -> bool:
    """Store a grammar that is ready at once for the requests behind this one; return whether it was not cached."""
    queued = original(self, req)
    # Ranks that looked at different times would schedule different requests.
    if not queued or self.grammar_sync_size > 1 or self.pp_size > 1:
        return queued
    *earlier, grammar = [one.grammar for one in self.grammar_queue]
    if all(isinstance(one, Future) and one.done() for one in earlier):
        wait([grammar], PATIENCE)
        if grammar.done() and grammar.exception() is None:
            self.grammar_backend.set_cache(req.grammar_key, grammar.result().copy())
    return queued
