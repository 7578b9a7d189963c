"""Requests that the engine refuses, drops or gives up depart, once: SGLang's own methods decide which those are.

And agents that are over give up their slots, with what is booked under their names.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("sglang", reason="needs the server extra: uv pip install 'hive[server]'")

from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.managers import schedule_batch
from sglang.srt.managers import scheduler as upstream
from sglang.srt.managers.schedule_batch import FINISH_ABORT, FINISH_LENGTH, ScheduleBatch

from hive.server.agents.registry import OTHER, AgentRegistry
from hive.server.agents.window import WindowSettings
from hive.server.logits_cache.cache import CachedRequest, LogitsCache
from hive.server.logits_cache.sampling import SamplingRule
from sglang_patches.hooks import scheduler as hooks
from sglang_patches.scheduling import control, replay
from sglang_patches.scheduling.state import SchedulerState
from tests.sglang_patches.kv_pool import KvPool


@pytest.fixture(autouse=True)
def settings_of_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang 0.5.23 reads them where earlier ones asked the scheduler."""
    for module, name, values in (
        (upstream, "get_serving", {"weight_version": "default"}),
        (upstream, "get_parallel", {"pp_size": 1}),
        (schedule_batch, "get_schedule", {"retraction_policy": "length"}),
    ):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, lambda values=values: SimpleNamespace(**values))


class Request:
    """What the scheduler reads of SGLang's requests, under its names."""

    def __init__(self, rid: str, agent: str = "a", priority: int | None = None, **tag: Any) -> None:
        self.rid, self.priority = rid, priority
        self.origin_input_ids, self.output_ids = [1] * 10, list[int]()
        self.cached_tokens = 0
        self.extra_key: str | None = None
        self.is_retracted = False
        self.to_finish: Any = None
        self.finished_reason: Any = None
        self.return_logprob = False
        self.kv_committed_len, self.req_pool_idx, self.mamba_pool_idx = 10, 0, None
        # What SGLang 0.5.23 reads beside that.
        self.kv = SimpleNamespace(kv_committed_len=10, req_pool_idx=0, holds_kv=True, holds_mamba=False)
        self.weight_version_events: list[Any] = []
        self.cache_request_handle = self.session = self.discard_output_reason = self.beam_group = None
        self.sampling_params = SimpleNamespace(
            custom_params={"hive": {"agent": agent, "replay": "off", **tag}},
            sampling_seed=1,
            max_new_tokens=8,
        )
        self.time_stats = SimpleNamespace(
            trace_ctx=SimpleNamespace(abort=lambda **_info: None),
            set_wait_queue_entry_time=lambda: None,
            wait_queue_entry_time=0.0,
        )

    def finished(self) -> bool:
        return self.finished_reason is not None

    def release_mm_inputs_on_abort(self) -> None:
        pass


class Batch(ScheduleBatch):  # type: ignore[misc]
    """Running requests, and a pool that is full for all but the first ``room`` of them."""

    def __init__(self, *reqs: Request, room: int = 0) -> None:
        self.reqs, self.room = list(reqs), room

    def check_decode_mem(self, selected_indices: list[int] | None = None) -> bool:
        return len(self.reqs if selected_indices is None else selected_indices) <= self.room

    def release_req(self, idx: int, *_args: Any, **_kwargs: Any) -> bool:
        self.reqs[idx].is_retracted = True
        return True

    def filter_batch(self, keep_indices: Any = None, **_kwargs: Any) -> None:
        if keep_indices is not None:
            self.reqs = [self.reqs[index] for index in keep_indices]

    def prepare_for_decode(self) -> None:
        pass


class Scheduler(upstream.Scheduler):  # type: ignore[misc]
    """SGLang's, as far as it admits requests and drops them, with Hive's hooks and without a model."""

    def __init__(self, limit: int | None = None, cache: LogitsCache | None = None) -> None:
        agents = AgentRegistry(8)
        self.hive = SchedulerState(agents, None, cache, None, "nothing", [], [])
        self.waiting_queue: list[Any] = []
        self.max_queued_requests = limit
        self.disaggregation_mode = DisaggregationMode.NULL
        self.enable_priority_scheduling = self.schedule_low_priority_values_first = False
        self.abort_on_priority_when_disabled = False
        self.enable_hicache_storage = self.enable_hierarchical_cache = False
        self.aborted: list[str] = []
        sender = SimpleNamespace(send_output=lambda message, _req: self.aborted.append(message.rid))
        self.ipc_channels = SimpleNamespace(send_to_tokenizer=sender)
        self.chunked_req: Any = None
        self._pending_chunked_abort_req: Any = None
        self.forward_ct = 0
        self.server_args = SimpleNamespace(retraction_policy="length", pp_size=1)
        self.token_to_kv_pool_allocator = SimpleNamespace(available_size=lambda: 0)
        self.tree_cache = SimpleNamespace(req_to_token_pool=None, finish=lambda *_: None)
        self.new_token_ratio_tracker = SimpleNamespace(current=1.0, decay_step=lambda: None)
        self.metrics_reporter = SimpleNamespace(enable_metrics=False)
        self.running_batch, self.last_batch = Batch(), None
        self.grammar_manager = SimpleNamespace(grammar_queue=[], abort_requests=lambda _message: None)
        self.dllm_config = None
        self.ps = SimpleNamespace(pp_size=1)
        # What SGLang 0.5.23 reads beside that.
        self.processed_tokens_counter = 0
        self.enable_skip_finishing_decode = self.enable_continuous_input_polling = False
        self.rust_server = self.mm_receiver = self.decode_offload_manager = None
        self.beam_coordinator = SimpleNamespace(retire_group=lambda _req: None)

    def _prefetch_kvcache(self, req: Any) -> None:
        pass

    def _add_request_to_queue(self, req: Any, is_retracted: bool = False) -> None:
        original = upstream.Scheduler._add_request_to_queue
        hooks.around_add_request_to_queue(original, self, req, is_retracted)

    def loop(self, running: Batch, last: Batch | None = None) -> None:
        """What one loop of the scheduler does to a running batch when there is nothing to prefill."""

        def original(self: Scheduler, running_batch: Batch, last_batch: Batch | None) -> None:
            self.process_pending_chunked_abort()
            if last_batch is not None:
                running_batch.reqs += last_batch.reqs
            self.update_running_batch(running_batch)

        hooks.around_get_next_batch_to_run(original, self, running_batch=running, last_batch=last)

    def result(self, batch: Batch, *finished: Request) -> None:
        """The result of a step, with which some requests come to their end."""

        def original(*_args: Any) -> None:
            for req in finished:
                req.finished_reason = FINISH_LENGTH(1)

        hooks.around_process_batch_result(original, self, batch, SimpleNamespace())  # type: ignore[arg-type]

    def abort(self, rid: str, *, everybody: bool = False) -> None:
        """What a client that goes away sends."""
        message = SimpleNamespace(rid=rid, abort_all=everybody, abort_message=None, finished_reason=None)
        hooks.around_abort_request(upstream.Scheduler.abort_request, self, message)  # type: ignore[arg-type]

    @property
    def running(self) -> dict[str, int]:
        """Unfinished requests, by agent."""
        return dict(self.hive.agents.window._running)


@pytest.fixture(autouse=True)
def no_bypass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "bypass_reason", lambda *_args: "asked_off")


def queued(scheduler: Scheduler) -> list[str]:
    return [req.rid for req in scheduler.waiting_queue]


def test_requests_that_a_full_queue_refuses_depart() -> None:
    scheduler = Scheduler(limit=2)
    for number in range(50):
        scheduler._add_request_to_queue(Request(str(number), "spam"))
    assert queued(scheduler) == ["0", "1"]
    assert len(scheduler.aborted) == 48
    assert scheduler.running == {"spam": 2}
    assert scheduler.hive.agents.profile("spam").requests == 50, "they came"


def test_a_distinct_sample_that_a_full_queue_refuses_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rule = SamplingRule.of(1.0, -1, 1.0, 0.0)
    monkeypatch.setattr(hooks, "bypass_reason", lambda *_args: None)
    monkeypatch.setattr(
        hooks,
        "cached_request",
        lambda req, seed, *_args, **_options: CachedRequest("", rule, seed, req.origin_input_ids, "distinct"),
    )
    cache = LogitsCache(2**20)
    scheduler = Scheduler(limit=0, cache=cache)
    for number in range(3):
        scheduler._add_request_to_queue(Request(str(number)))
    assert scheduler.aborted == ["0", "1", "2"], "none waits for one that is gone"
    assert scheduler.hive.drawing == scheduler.hive.replaying == []
    assert scheduler.running == {}
    assert cache.statistics.lookups == 3


def test_a_refusal_for_the_priority_departs() -> None:
    scheduler = Scheduler()
    scheduler.abort_on_priority_when_disabled = True
    scheduler._add_request_to_queue(Request("urgent", "a", priority=1))
    scheduler._add_request_to_queue(Request("plain", "b"))
    assert (queued(scheduler), scheduler.aborted) == (["plain"], ["urgent"])
    assert scheduler.running == {"b": 1}


def test_whom_a_higher_priority_pushes_out_of_the_queue_departs() -> None:
    scheduler = Scheduler(limit=2)
    scheduler.enable_priority_scheduling = True
    for rid, agent, priority in (("low", "a", 1), ("middle", "b", 2), ("high", "c", 3), ("lowest", "d", 0)):
        scheduler._add_request_to_queue(Request(rid, agent, priority))
    assert (queued(scheduler), scheduler.aborted) == (["middle", "high"], ["low", "lowest"])
    assert scheduler.running == {"b": 1, "c": 1}


def test_a_health_check_that_is_refused_never_arrived() -> None:
    scheduler = Scheduler(limit=0)
    scheduler._add_request_to_queue(Request("HEALTH_CHECK_1"))
    assert scheduler.aborted == ["HEALTH_CHECK_1"]
    assert scheduler.running == {}
    assert scheduler.hive.agents.requests == 0


def test_requests_in_the_queues_of_disaggregation_are_not_finished() -> None:
    scheduler = Scheduler()
    scheduler.disaggregation_mode = DisaggregationMode.DECODE
    scheduler.disagg_decode_prealloc_queue = SimpleNamespace(add=lambda _req, is_retracted: None)
    req = Request("0")
    req.time_stats.set_decode_prealloc_queue_entry_time = lambda: None
    scheduler._add_request_to_queue(req)
    assert scheduler.running == {"a": 1}


def test_a_retracted_request_that_finds_the_queue_full_departs() -> None:
    scheduler = Scheduler(limit=1)
    old, young, waiting = Request("old", "a"), Request("young", "b"), Request("waiting", "c")
    for req in (old, young):
        scheduler._add_request_to_queue(req)
        scheduler.waiting_queue.clear()
    old.output_ids, young.output_ids = [1, 2], [1]
    scheduler._add_request_to_queue(waiting)
    batch = Batch(old, young, room=1)
    scheduler.loop(batch)
    assert batch.reqs == [old]
    assert (queued(scheduler), scheduler.aborted) == (["waiting"], ["young"])
    assert scheduler.running == {"a": 1, "c": 1}


def test_the_last_request_of_a_batch_that_finds_no_memory_departs() -> None:
    scheduler = Scheduler()
    last, other = Request("last", "a"), Request("other", "b")
    for req in (last, other):
        scheduler._add_request_to_queue(req)
    scheduler.waiting_queue.clear()
    last.output_ids = [1, 2]
    batch = Batch(last)
    scheduler.loop(batch, Batch(other))
    assert batch.reqs == []
    assert scheduler.aborted == ["last"]
    assert queued(scheduler) == ["other"], "it was retracted, and goes on later"
    assert scheduler.running == {"b": 1}
    # Overlap scheduling still has a result of both.
    scheduler.result(Batch(last, other))
    assert scheduler.running == {"b": 1}


def test_a_request_that_joins_a_batch_and_finds_no_memory_departs() -> None:
    scheduler = Scheduler()
    req = Request("joins")
    scheduler._add_request_to_queue(req)

    def original(self: Scheduler, _running: Batch, _last: Batch | None) -> None:
        self.waiting_queue.remove(req)
        self.update_running_batch(Batch(req))

    hooks.around_get_next_batch_to_run(original, scheduler, Batch(), None)
    assert scheduler.aborted == ["joins"]
    assert scheduler.running == {}


def test_a_request_that_is_aborted_and_then_retracted_departs_with_its_result() -> None:
    scheduler = Scheduler()
    first, second = Request("first", "a"), Request("second", "b")
    for req in (first, second):
        scheduler._add_request_to_queue(req)
    scheduler.waiting_queue.clear()
    first.output_ids = [1, 2]
    second.to_finish = FINISH_ABORT()  # as abort_request leaves what runs
    scheduler.loop(Batch(first, second, room=1))
    assert queued(scheduler) == ["second"]
    assert scheduler.running == {"a": 1, "b": 1}
    scheduler.waiting_queue.clear()
    scheduler.result(Batch(first, second), second)
    assert scheduler.running == {"a": 1}


def test_a_request_that_is_aborted_between_two_chunks_departs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "release_kv_cache", lambda *_args, **_options: None)
    scheduler = Scheduler()
    req, other = Request("long", "a"), Request("other", "b")
    for one in (req, other):
        scheduler._add_request_to_queue(one)
    scheduler.waiting_queue.clear()
    scheduler.chunked_req = req
    scheduler.loop(Batch(other, room=1))
    assert scheduler.running == {"a": 1, "b": 1}
    scheduler._pending_chunked_abort_req = req  # as abort_request leaves it
    scheduler.loop(Batch(other, room=1))
    assert scheduler.aborted == ["long"]
    assert scheduler.running == {"b": 1}
    # Overlap scheduling still has a result of its chunk.
    scheduler.result(Batch(req, other))
    assert scheduler.running == {"b": 1}


def test_an_abort_is_of_one_request_and_not_of_those_whose_ids_begin_alike() -> None:
    scheduler = Scheduler()
    one, ten, twelve = (Request(rid) for rid in ("1", "10", "12"))
    for req in (one, ten, twelve):
        scheduler._add_request_to_queue(req)
    scheduler.waiting_queue.remove(ten)
    scheduler.running_batch = Batch(ten)
    scheduler.abort("1")
    assert scheduler.aborted == ["1"]
    assert queued(scheduler) == ["12"]
    assert (ten.rid, ten.to_finish, twelve.rid) == ("10", None, "12")
    assert scheduler.running == {"a": 2}
    scheduler.abort("10")
    assert isinstance(ten.to_finish, FINISH_ABORT)
    scheduler.abort("", everybody=True)
    assert scheduler.aborted == ["1", "12"]


def test_a_check_names_wrong_accounting_and_leaks() -> None:
    cache = LogitsCache(1000)
    scheduler = Scheduler(cache=cache)
    assert control.problems(scheduler.hive, True) == []
    scheduler.hive.drawing.append(Request("0"))  # type: ignore[arg-type]
    cache.in_flight.add(b"state")
    assert control.problems(scheduler.hive, False) == []
    cache.trie.nbytes = 5
    assert control.problems(scheduler.hive, True) == [
        "LogitsCache: bytes",
        "1 distinct samples are still being drawn, although the scheduler is idle",
        "1 rows are still being computed, although the scheduler is idle",
    ]


def test_a_request_that_was_seen_off_is_not_seen_off_again() -> None:
    scheduler = Scheduler(limit=0)
    req, other = Request("0"), Request("1")
    scheduler._add_request_to_queue(req)
    scheduler.max_queued_requests = None
    scheduler._add_request_to_queue(other)
    replay.finish(scheduler, req, ended=False)
    scheduler.result(Batch(req), req)
    assert scheduler.running == {"a": 1}


def test_a_request_is_counted_under_one_name_until_it_leaves() -> None:
    scheduler = Scheduler()
    agents = scheduler.hive.agents = AgentRegistry(1, window=WindowSettings(1, 1))
    agents.reuse_slots(lambda _agent: False, lambda _agent: None)
    reqs = [Request("0", "first"), Request("1", "second")]
    for req in reqs:
        scheduler._add_request_to_queue(req)
    assert scheduler.running == {"first": 1, OTHER: 1}
    first, second = reqs
    scheduler.result(Batch(first), first)
    for number in range(4):
        agents.arrived(None, None, number)
    reqs.append(Request("2", "second"))
    scheduler._add_request_to_queue(reqs[-1])
    assert scheduler.running == {"second": 1, OTHER: 1 + 4}
    scheduler.result(Batch(second), second)
    assert scheduler.running == {"second": 1, OTHER: 4}
    scheduler.result(Batch(reqs[-1]), reqs[-1])
    assert scheduler.running == {OTHER: 4}


def test_the_accounting_is_bounded_for_any_number_of_agents() -> None:
    pool = KvPool(200, max_agents=3, window=WindowSettings(2, 2))
    tree = pool.cache
    pool.agents.reuse_slots(tree.accounting.holds, tree.accounting.forget)
    for number in range(60):
        pool.run([number + 1] * 20, f"agent-{number % 30}", output=[1, 2])
        pool.check()
        known = {agent["name"] for agent in pool.agents.summary()["agents"]}
        assert (
            set(tree.accounting.resident) | set(tree.accounting.held) <= set(tree.accounting.totals) <= known
        )
        assert len(known) <= 4
        assert len(tree.policy._agents) <= 4
    totals = tree.accounting.totals
    stored = sum(total.stored for total in totals.values())
    assert stored >= 60 * 20, "of nobody it is lost"
    assert stored - sum(total.evicted for total in totals.values()) == tree.total_size()
    assert len(known - {"agent-0", "agent-1", "agent-2"}) > 1, "others have got the slots"


def test_whose_kv_another_agent_computed_holds_it_too() -> None:
    pool = KvPool(200)
    pool.run([1] * 20, "writer")
    pool.run([1] * 20, "reader")
    assert [pool.cache.accounting.holds(name) for name in ("writer", "reader", "third")] == [
        True,
        True,
        False,
    ]
