"""Hook on ``BaseGrammarBackend``: the samples of a prompt share the compilation of their grammar.

Samples of one prompt arrive together.  SGLang's cache has their grammar only once the first of them has left the queue
of grammars, so each of them would compile it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglang.srt.constrained.base_grammar_backend import BaseGrammarBackend, BaseGrammarObject


def around_get_cached_or_future_value(
    original: Callable[..., tuple[Any, bool]],
    self: BaseGrammarBackend,
    key: tuple[str, str],
    require_reasoning: bool,
) -> tuple[Any, bool]:
    """Return a cached grammar, or the future of a copy of the one that is being compiled for this key."""
    compiling: dict[tuple[tuple[str, str], bool], Future[BaseGrammarObject]]
    compiling = self.__dict__.setdefault("hive_compiling", {})
    compiled = compiling.get((key, require_reasoning))
    if compiled is None or key in self.cache:
        compiled, cached = original(self, key, require_reasoning)
        if cached:
            return compiled, True
        compiling[key, require_reasoning] = compiled
        # Later requests find the grammar in SGLang's cache, or compile it again.
        compiled.add_done_callback(lambda _: compiling.pop((key, require_reasoning), None))
    return _copy(compiled, require_reasoning), False


def _copy(compiled: Future[BaseGrammarObject], require_reasoning: bool) -> Future[BaseGrammarObject]:
    """Return the future of a grammar for one request, which cancels it without cancelling the compilation."""
    own: Future[BaseGrammarObject] = Future()

    def settle(done: Future[BaseGrammarObject]) -> None:
        if not own.set_running_or_notify_cancel():
            return
        try:
            grammar = done.result().copy()
            grammar.maybe_init_reasoning(require_reasoning)
        except Exception as error:
            own.set_exception(error)
        else:
            own.set_result(grammar)

    compiled.add_done_callback(settle)
    return own
