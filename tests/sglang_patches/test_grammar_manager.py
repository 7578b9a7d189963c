"""A new grammar: who waits for its compilation, and who shares it."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_patches.hooks.grammar_manager import PATIENCE, around_process_req_with_grammar


class Grammar:
    def __init__(self, pattern: str) -> None:
        self.pattern = pattern

    def copy(self) -> Grammar:
        return Grammar(self.pattern)


class Manager:
    """SGLang's manager as far as the hook reads it; ``compile`` runs on another thread."""

    def __init__(self, compile: Any, ranks: int = 1) -> None:
        self.cache: dict[tuple[str, str], Grammar] = {}
        self.grammar_backend = SimpleNamespace(set_cache=self.cache.__setitem__)
        self.grammar_queue: list[Any] = []
        self.grammar_sync_size, self.pp_size = ranks, 1
        self._compile = compile
        self._threads = ThreadPoolExecutor(4)

    def arrive(self, pattern: str) -> Any:
        req = SimpleNamespace(grammar=None, grammar_key=("regex", pattern))
        req.queued = around_process_req_with_grammar(Manager._process, self, req)  # type: ignore[arg-type]
        return req

    def _process(self, req: Any) -> bool:
        known = self.cache.get(req.grammar_key)
        req.grammar = (
            known.copy() if known else self._threads.submit(self._compile, Grammar(req.grammar_key[1]))
        )
        if known is None:
            self.grammar_queue.append(req)
        return known is None


def test_samples_of_one_prompt_share_a_small_grammar() -> None:
    compiled: list[Grammar] = []

    def compile_(grammar: Grammar) -> Grammar:
        compiled.append(grammar)
        return grammar

    manager = Manager(compile_)
    first, *others = [manager.arrive("[a-z]") for _ in range(20)]
    assert first.queued, "SGLang takes it from its queue in the next loop"
    assert first.grammar.done()
    assert not any(req.queued for req in others)
    assert len(compiled) == 1
    grammars = [first.grammar.result(), *(req.grammar for req in others)]
    assert len(set(map(id, grammars))) == 20, "each request has a matcher of its own"


def test_large_grammars_hold_up_the_scheduler_once() -> None:
    go = threading.Event()
    manager = Manager(lambda grammar: go.wait(60) and grammar)
    begun = time.perf_counter()
    requests = [manager.arrive(f"[a-z]{{{at}}}") for at in range(200)]
    took = time.perf_counter() - begun
    go.set()
    assert took < 200 * PATIENCE / 4, "only the first one waited"
    assert all(req.queued for req in requests)
    assert not manager.cache


def test_a_grammar_that_fails_is_left_to_sglang() -> None:
    def compile_(grammar: Grammar) -> Grammar:
        raise ValueError(grammar.pattern)

    manager = Manager(compile_)
    req = manager.arrive("(")
    assert req.queued
    assert isinstance(req.grammar, Future)
    with pytest.raises(ValueError, match="\\("):
        req.grammar.result()
    assert not manager.cache


def test_ranks_do_not_decide_by_the_clock() -> None:
    manager = Manager(lambda grammar: grammar, ranks=2)
    assert all(manager.arrive("[a-z]").queued for _ in range(3))
    assert not manager.cache
