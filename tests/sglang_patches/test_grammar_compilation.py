"""New grammars: which requests share a compilation, and how long a batch waits for it."""

from __future__ import annotations

import threading
import time
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_patches.hooks.base_grammar_backend import around_get_cached_or_future_value
from sglang_patches.hooks.grammar_manager import PATIENCE, around_get_ready_grammar_requests

KEY = ("regex", "[a-z]")


class Grammar:
    def __init__(self) -> None:
        self.reasoning: bool | None = None

    def copy(self) -> Grammar:
        return Grammar()

    def maybe_init_reasoning(self, reasoning: bool) -> None:
        self.reasoning = reasoning


class Backend:
    """SGLang's backend as far as the hook reads it; compilations end when ``go`` is set."""

    def __init__(self) -> None:
        self.cache: dict[tuple[str, str], Grammar] = {}
        self.compiled = 0
        self.go = threading.Event()
        self.fails = False
        self._threads = ThreadPoolExecutor(4)

    def get(self, key: tuple[str, str] = KEY, reasoning: bool = False) -> tuple[Any, bool]:
        return around_get_cached_or_future_value(Backend._original, self, key, reasoning)  # type: ignore[arg-type]

    def _original(self, key: tuple[str, str], reasoning: bool) -> tuple[Any, bool]:
        if key in self.cache:
            return self.cache[key].copy(), True
        return self._threads.submit(self._compile), False

    def _compile(self) -> Grammar:
        self.compiled += 1
        assert self.go.wait(60)
        if self.fails:
            raise ValueError("no grammar")
        return Grammar()


@pytest.fixture
def backend() -> Backend:
    return Backend()


def test_samples_of_one_prompt_share_a_compilation(backend: Backend) -> None:
    found = [backend.get() for _ in range(20)]
    assert not any(cached for _, cached in found)
    backend.go.set()
    grammars = [future.result(60) for future, _ in found]
    assert backend.compiled == 1
    assert len(set(map(id, grammars))) == 20, "each request has a grammar of its own"
    assert all(grammar.reasoning is False for grammar in grammars)


def test_other_grammars_are_compiled_beside(backend: Backend) -> None:
    futures = [backend.get(key, reasoning)[0] for key in (KEY, ("json", "{}")) for reasoning in (True, False)]
    backend.go.set()
    assert [future.result(60).reasoning for future in futures] == [True, False, True, False]
    assert backend.compiled == 4


def test_an_aborted_sample_leaves_the_others_their_grammar(backend: Backend) -> None:
    first, second = backend.get()[0], backend.get()[0]
    assert first.cancel(), "SGLang cancels the future of a request that is aborted in its queue"
    backend.go.set()
    assert isinstance(second.result(60), Grammar)
    with pytest.raises(CancelledError):
        first.result(0)
    assert backend.compiled == 1


def test_all_samples_get_the_error_of_their_grammar(backend: Backend) -> None:
    backend.fails = True
    futures = [backend.get()[0] for _ in range(3)]
    backend.go.set()
    for future in futures:
        with pytest.raises(ValueError, match="no grammar"):
            future.result(60)


def test_after_a_compilation_the_cache_decides(backend: Backend) -> None:
    backend.go.set()
    backend.get()[0].result(60)
    backend.cache[KEY] = Grammar()
    grammar, cached = backend.get()
    assert cached
    assert isinstance(grammar, Grammar)
    # A flush empties SGLang's cache.
    backend.cache.clear()
    backend.get()[0].result(60)
    assert backend.compiled == 2


def manager(*grammars: Any) -> Any:
    return SimpleNamespace(grammar_queue=[SimpleNamespace(grammar=grammar) for grammar in grammars])


def ready(self: Any) -> list[Any]:
    """SGLang's look at its queue."""
    return [req for req in self.grammar_queue if isinstance(req.grammar, Future) and req.grammar.done()]


def test_a_large_grammar_is_waited_for_once() -> None:
    large: Future[Grammar] = Future()
    queue = manager(large)
    took = []
    for _ in range(4):
        begun = time.perf_counter()
        assert around_get_ready_grammar_requests(ready, queue) == []
        took.append(time.perf_counter() - begun)
    assert took[0] >= PATIENCE
    assert min(took[1:]) < PATIENCE
    large.set_result(Grammar())
    assert around_get_ready_grammar_requests(ready, queue) == queue.grammar_queue


def test_a_batch_waits_for_small_grammars() -> None:
    future: Future[Grammar] = Future()
    timer = threading.Timer(PATIENCE / 4, future.set_result, [Grammar()])
    queue = manager(future, None)
    timer.start()
    begun = time.perf_counter()
    found = around_get_ready_grammar_requests(ready, queue)
    took = time.perf_counter() - begun
    timer.join()
    assert found == [queue.grammar_queue[0]] or took >= PATIENCE, "unless this machine was too busy"


def test_a_batch_does_not_wait_long_for_large_grammars() -> None:
    begun = time.perf_counter()
    assert around_get_ready_grammar_requests(ready, manager(Future(), Future())) == []
    assert time.perf_counter() - begun < 100 * PATIENCE
