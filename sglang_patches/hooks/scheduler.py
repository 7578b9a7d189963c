"""Hooks on ``sglang.srt.managers.scheduler.Scheduler``: arrival, recording, end of requests, control messages,
flushes.

Each scheduler process owns one :class:`~sglang_patches.scheduling.state.SchedulerState`.  All tensor-parallel ranks
see the same requests in the same order and draw from the same numbers, so they reach the same decisions without
communication.  No decision here depends on a clock or on polling an event.  :mod:`sglang_patches.scheduling.replay`
contains replay itself.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hive.server.flags.server_args import HiveServerArgs
from hive.server.host_memory import freeze_objects
from hive.server.logits_cache.cache import LogitsCache
from hive.server.logits_cache.distinct import DistinctSample
from hive.server.request_checks.batches import WARM_UP_RID
from sglang_patches.cache.selection import agent_aware, registry_of
from sglang_patches.contract.activation import verify
from sglang_patches.contract.releases import current
from sglang_patches.forward.decode_adapters import DecodeAdapters
from sglang_patches.forward.decode_rows import DecodeRows
from sglang_patches.forward.sampler import CONSTRAINTS_ATTRIBUTE, ROWS_ATTRIBUTE, HiveSampler, SampledRows
from sglang_patches.http.control import CONTROL_PREFIX
from sglang_patches.requests.request_state import (
    PROBABILITY_KEY,
    REPEATS_KEY,
    Arrival,
    RequestState,
    bypass_reason,
    cached_request,
    identity_of,
    is_aborted,
    keep_apart,
    next_seed_of,
    seed_of,
    tag_of,
)
from sglang_patches.scheduling import replay
from sglang_patches.scheduling.cache_memory import IDLE_LOOPS, CacheMemory
from sglang_patches.scheduling.contribution_order import ContributionOrder
from sglang_patches.scheduling.control import handle, problems
from sglang_patches.scheduling.decode_join import join
from sglang_patches.scheduling.hints import observed
from sglang_patches.scheduling.metrics import SchedulerMetrics
from sglang_patches.scheduling.mixed_step import mix
from sglang_patches.scheduling.state import SchedulerState
from sglang_patches.scheduling.traffic import record_of

if TYPE_CHECKING:
    from sglang.srt.managers.io_struct import AbortReq, DumperControlReqInput
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
    from sglang.srt.managers.scheduler import Scheduler

LEAST_PROBABILITY = 1e-300
"""Reported probability of a drawn token if rounding makes it zero."""


def after_init(_result: None, self: Scheduler, *_args: Any, **_kwargs: Any) -> None:
    """Set up Hive's state; refuse to serve if a hook did not apply in this process."""
    verify()
    args = HiveServerArgs.from_environment()
    ours = isinstance(self.tp_worker.model_runner.sampler, HiveSampler)
    cache = None
    if args.logits_cache and ours:
        cache = LogitsCache(args.logits_cache_bytes, replay_ahead=args.replay_ahead)
    # One rank per tensor-parallel group counts for all.
    counting = self.server_args.enable_metrics and self.metrics_reporter.is_stats_logging_rank
    metrics = SchedulerMetrics() if counting else None
    tree = agent_aware(self.tree_cache)
    agents = tree.agents if tree is not None else registry_of(args)
    if tree is not None:
        tree.accounting.retention.share = args.retain_share
        agents.reuse_slots(tree.accounting.holds, tree.accounting.forget)
    else:
        # SGLang's own cache does not track agents.
        agents.reuse_slots(lambda agent: False, lambda agent: None)
    self.hive = SchedulerState(agents, tree, cache, metrics, args.share_tenants, [], [])
    self.hive.memory = CacheMemory.of(self, cache, args.min_free_host_bytes)
    if current().decode_rows:
        runner = self.tp_worker.model_runner
        runner.hive_decode_rows = self.hive.rows = DecodeRows.of(runner, args.decode_rows)
        # Steps with placed KV choose by themselves which of their tokens become decode rows.
        if not args.kv_segments:
            DecodeAdapters.install(runner, self.hive.rows)
    if args.kv_segments:
        from sglang_patches.forward import kv_segments

        self.hive.kv = kv_segments.start(self)
    self.hive.record = record_of(self, args)
    by_contribution = args.schedule == "contribution"
    self.policy.hive_order = ContributionOrder(agents, args.schedule_max_passes) if by_contribution else None
    freeze_objects()


def around_add_request_to_queue(
    original: Callable[..., None], self: Scheduler, req: Req, is_retracted: bool = False
) -> None:
    """Replay a new request. If it finishes in replay it is not queued, and if the queue rejects it, it is released."""
    from sglang.srt.managers.utils import is_health_check_generate_req

    fresh = not (is_retracted or req.is_retracted or len(req.output_ids) or hasattr(req, "hive"))
    own = is_health_check_generate_req(req) or req.rid.startswith(WARM_UP_RID)
    if not fresh or req.finished() or req.to_finish is not None or own:
        _queue(original, self, req, is_retracted)
        return

    state: SchedulerState = self.hive
    next_seed, seed = next_seed_of(req), seed_of(req)
    agent, session = identity_of(req)
    agent = state.agents.arrived(agent, session, len(req.origin_input_ids))
    arrival = Arrival.of(req)
    req.hive = RequestState(
        agent,
        session,
        number=state.agents.requests,
        arrived_at=state.time if arrival is None else state.at(arrival.at),
        answers_person=arrival is not None and arrival.answers_person,
    )
    if state.share_tenants == "nothing":
        keep_apart(req)
    state.live.sessions.arrived(session, agent, tag_of(req).get("state"))
    if state.kv is not None:
        state.kv.arrived(req)
    reason = bypass_reason(self, req)
    if state.cache is None or reason is not None:
        if state.cache is not None and reason is not None:
            state.cache.bypass(reason)
        _queue(original, self, req, is_retracted)
        return
    req.hive.cached = cached_request(req, seed, next_seed, share_tenants=state.share_tenants == "everything")
    replay.begin(self, req)


def _queue(original: Callable[..., None], scheduler: Scheduler, req: Req, is_retracted: bool) -> None:
    """Queue a request in the engine.

    The engine may reject it, also a retracted one, because the queue is full or because of its priority.  With
    priorities, a full queue may drop another request instead.
    """
    from sglang.srt.disaggregation.utils import DisaggregationMode

    queued = [*scheduler.waiting_queue, req]
    original(scheduler, req, is_retracted)
    if scheduler.disaggregation_mode not in (DisaggregationMode.PREFILL, DisaggregationMode.DECODE):
        # Under disaggregation, requests wait in other queues.
        _finish_dropped(scheduler, queued)


def around_process_batch_result(
    original: Callable[..., None], self: Scheduler, batch: ScheduleBatch, result: Any
) -> None:
    """Record the rows of a step, and finish the requests that ended in it.

    Row i of a batch belongs to ``batch.reqs[i]`` if and only if that request's output grew by exactly one drawn token.
    It does not grow for a chunk of a longer prefill, a retracted request or overlap scheduling's late row.
    """
    output = getattr(result, "logits_output", None)
    rows: SampledRows | None = getattr(output, ROWS_ATTRIBUTE, None)
    before = [(req, len(req.output_ids), req.finished()) for req in batch.reqs]
    if rows is not None and self.hive.drawing:
        _report_probabilities(batch, result, rows)
    original(self, batch, result)
    cache: LogitsCache | None = self.hive.cache
    started = time.perf_counter()
    for i, (req, length, was_finished) in enumerate(before):
        attached: RequestState | None = getattr(req, "hive", None)
        if attached is None:
            continue
        recording = rows is not None and cache is not None and attached.cached is not None
        if recording and len(req.output_ids) - attached.forced == length + 1:
            drawn = req.output_ids[: length + 1] if attached.forced else req.output_ids
            cache.record(attached.cached, drawn, rows.packed(i))  # type: ignore[union-attr, arg-type]
            sample = attached.cached.sample  # type: ignore[union-attr]
            if sample is not None:
                sample.advance(req.output_ids[-1], _probability(rows, i))  # type: ignore[arg-type]
        if req.finished() and not was_finished:
            ended = not is_aborted(req)
            replay.finish(self, req, ended=ended)
    if rows is not None:
        delattr(output, ROWS_ATTRIBUTE)
    if cache is not None:
        cache.statistics.record_seconds += time.perf_counter() - started


def _report_probabilities(batch: ScheduleBatch, result: Any, rows: SampledRows) -> None:
    """Report the log-probability of distinct samples with each token; must run before the result is processed, which
    sends the outputs.
    """
    samples = {i: sample for i, req in enumerate(batch.reqs) if (sample := _sample_of(req)) is not None}
    if not samples:
        return
    if result.copy_done is not None:
        result.copy_done.synchronize()
    reported: dict[str, list[Any]] = {
        PROBABILITY_KEY: [None] * len(batch.reqs),
        REPEATS_KEY: [None] * len(batch.reqs),
    }
    for i, sample in samples.items():
        reported[PROBABILITY_KEY][i] = sample.log_probability + math.log(_probability(rows, i))
        reported[REPEATS_KEY][i] = sample.repeats
    result.logits_output.customized_info = {**(result.logits_output.customized_info or {}), **reported}


def _sample_of(req: Req) -> DistinctSample | None:
    attached: RequestState | None = getattr(req, "hive", None)
    return attached.cached.sample if attached is not None and attached.cached is not None else None


def _probability(rows: SampledRows, index: int) -> float:
    """Return the probability of a drawn token, in (0, 1] even if the row is invalid."""
    probability = rows.probability(index)
    return min(probability, 1.0) if probability > LEAST_PROBABILITY else LEAST_PROBABILITY


def around_get_next_batch_to_run(
    original: Callable[..., Any],
    self: Scheduler,
    running_batch: ScheduleBatch,
    last_batch: ScheduleBatch | None,
) -> Any:
    """Run a slice of each replay in progress, and finish requests that the engine drops without a result.

    These are a request that was aborted between two chunks of its prefill, and the last request of a batch that does
    not fit into the pool after all others were retracted.
    """
    if self.hive.memory is not None:
        self.hive.memory.step()
    replay.advance(self)
    chunked = self.chunked_req
    # A queued request may join the running batch and be dropped within one loop.
    known = [*running_batch.reqs, *(last_batch.reqs if last_batch is not None else ()), *self.waiting_queue]
    with _held_back(
        self, self.hive.kv.waiting_for_siblings(self.waiting_queue) if self.hive.kv is not None else []
    ):
        plan = original(self, running_batch, last_batch)
    gone = [chunked] if chunked is not None and chunked.finished() else []
    for req in known:
        # A request that was aborted and then retracted is queued again, and gets its result later.
        given_up = req.is_retracted and req.to_finish is not None
        if given_up and not any(req is other for other in self.waiting_queue):
            gone.append(req)
    _finish_all(self, gone)
    return plan


@contextmanager
def _held_back(scheduler: Scheduler, held: list[Req]) -> Iterator[None]:
    """Hold some requests back from the queue inside the context; afterwards, they are at its end."""
    if held:
        scheduler.waiting_queue = [req for req in scheduler.waiting_queue if not any(req is h for h in held)]
    try:
        yield
    finally:
        scheduler.waiting_queue += held


def after_is_fully_idle(
    idle: bool, self: Scheduler, for_health_check: bool = False, ignore_waiting: bool = False
) -> bool:
    """Report a scheduler with requests in replay as busy."""
    state: SchedulerState | None = getattr(self, "hive", None)
    if not idle or for_health_check or ignore_waiting or state is None:
        return idle
    return not (state.replaying or state.pending_outputs)


def around_on_idle(original: Callable[..., None], self: Scheduler) -> None:
    """Keep the scheduler awake while there is something to prefetch."""
    if replay.prefetch(self):
        return
    if self.hive.memory is not None and self.server_args.sleep_on_idle:
        self.hive.memory.step(IDLE_LOOPS)
    original(self)


def before_run_batch(self: Scheduler, batch: ScheduleBatch, *_args: Any, **_kwargs: Any) -> None:
    """Count the batch, and tell the sampler which tokens distinct samples may draw if they follow an earlier one."""
    self.hive.steps.count(batch)
    if not self.hive.drawing:
        return
    constraints = {
        row: constraint
        for row, req in enumerate(batch.reqs)
        if (sample := _sample_of(req)) is not None and (constraint := sample.constraint()) is not None
    }
    if constraints:
        setattr(batch.sampling_info, CONSTRAINTS_ATTRIBUTE, constraints)


def after_is_disable_overlap_for_batch(
    disable: bool, self: Scheduler, batch: ScheduleBatch | None, last_batch: ScheduleBatch | None
) -> bool:
    """Disable overlap if a distinct sample follows an earlier one: it must know its last token before it draws the
    next one.
    """
    if disable or not self.hive.drawing or batch is None or last_batch is None:
        return disable
    return any((sample := _sample_of(req)) is not None and sample.follows_another for req in last_batch.reqs)


def around_abort_request(original: Callable[..., None], self: Scheduler, recv_req: AbortReq) -> None:
    """Also abort requests in replay, which are in no queue of the engine, and match request ids exactly.

    Upstream aborts all requests whose ids begin with the given id: if the client of request 1 disconnects, it also
    aborts request 10.  Callers that mean several requests (the samples of one request) name each of them.
    """
    queued = list(self.waiting_queue)
    with _ids_hidden([] if recv_req.abort_all else _others_with_prefix(self, recv_req.rid)):
        original(self, recv_req)
    replay.abort(self, recv_req)
    _finish_dropped(self, queued)


def _others_with_prefix(scheduler: Scheduler, rid: str) -> list[Req]:
    """Return requests in the engine whose ids begin with, but do not equal, an id."""
    batches = [scheduler.running_batch, scheduler.last_batch]
    if scheduler.server_args.pp_size > 1:
        batches += [*scheduler.running_mbs, *scheduler.mbs]
    known = [
        scheduler.chunked_req,
        *scheduler.waiting_queue,
        *scheduler.grammar_manager.grammar_queue,
        *(req for batch in batches if batch is not None for req in batch.reqs),
    ]
    # A running request may be found twice.
    found = {id(req): req for req in known if req is not None and req.rid != rid and req.rid.startswith(rid)}
    return list(found.values())


@contextmanager
def _ids_hidden(reqs: list[Req]) -> Iterator[None]:
    """Clear the ids of requests inside the context."""
    ids = [req.rid for req in reqs]
    for req in reqs:
        req.rid = ""
    try:
        yield
    finally:
        for req, rid in zip(reqs, ids, strict=True):
            req.rid = rid


def around_abort_on_waiting_timeout(original: Callable[..., None], self: Scheduler) -> None:
    """Release requests that timed out in the queue, which get no result."""
    queued = list(self.waiting_queue)
    original(self)
    _finish_dropped(self, queued)


def _finish_dropped(scheduler: Scheduler, queued: list[Req]) -> None:
    """Finish the requests of ``queued`` that have left the queue; no other requests may have entered it."""
    if len(scheduler.waiting_queue) != len(queued):
        still = {id(req) for req in scheduler.waiting_queue}
        _finish_all(scheduler, [req for req in queued if id(req) not in still])


def _finish_all(scheduler: Scheduler, dropped: list[Req]) -> None:
    """Finish requests that got no result; health checks have no state."""
    for req in dropped:
        if hasattr(req, "hive"):
            replay.finish(scheduler, req, ended=False)


def after_update_weights(_result: Any, self: Any, *_args: Any, **_kwargs: Any) -> None:
    """Drop what new weights invalidate: every recorded distribution and every encoded segment.

    This does not depend on whether ``flush_cache`` flushes the KV cache.  ``self`` is the scheduler's weight updater.
    """
    state: SchedulerState = self.scheduler.hive
    if state.cache is not None:
        state.cache.flush()
    if state.kv is not None:
        state.kv.forget()


def after_flush_cache(success: bool, self: Scheduler, *_args: Any, **_kwargs: Any) -> bool:
    """Flush the Logits Cache, too: an operator who flushes the KV cache wants a cold start."""
    if success and self.hive.cache is not None:
        self.hive.cache.flush()
    return success


def after_get_internal_state(result: Any, self: Scheduler, *_args: Any, **_kwargs: Any) -> Any:
    """Show Hive's counters in ``/server_info``, except those of agents: only ``/hive/agents`` separates tenants."""
    summary = {
        name: value for name, value in self.hive.summary().items() if name not in ("agents", "sharing")
    }
    result.internal_state["hive"] = summary
    return result


def around_handle_dumper_control(
    original: Callable[..., None], self: Scheduler, recv_req: DumperControlReqInput
) -> None:
    """Handle Hive's control messages, and pass on all others."""
    from sglang.srt.managers.io_struct import DumperControlReqOutput

    if not recv_req.method.startswith(CONTROL_PREFIX):
        original(self, recv_req)
        return
    operation = recv_req.method.removeprefix(CONTROL_PREFIX)
    if operation == "observed":
        # The HTTP process awaits no response.
        observed(self.hive, recv_req.body["ends"], recv_req.body["now"])
        return
    if operation == "check":
        idle = self.is_fully_idle()
        response: dict[str, Any] = {"idle": idle, "problems": problems(self.hive, idle)}
    elif operation == "events":
        response = {"events": self.hive.live.on_wire(self)}
    else:
        response = handle(self.hive, operation, recv_req.body)
    self.ipc_channels.send_to_tokenizer.send_output(
        DumperControlReqOutput(success=True, response=[response]), recv_req
    )


def around_run_event_loop(original: Callable[..., None], self: Scheduler) -> None:
    """Report a scheduler's failure in one line; SGLang logs the traceback and notifies the launcher."""
    try:
        original(self)
    except Exception as error:
        reported = " ".join(str(error).split())[:500]
        print(f"hive: a scheduler failed: {type(error).__name__}: {reported}", file=sys.stderr, flush=True)
        raise


def around_get_new_batch_prefill(
    original: Callable[..., Any], self: Scheduler, running_batch: ScheduleBatch
) -> Any:
    """Move replayed requests into the decode batch before the queue is scheduled, and merge short prefills with that
    batch.
    """
    if any(hasattr(req, "hive") and req.hive.may_join for req in self.waiting_queue):
        running_batch = join(self, running_batch)
    plan = original(self, running_batch)
    rows: DecodeRows | None = self.hive.rows
    # Steps with placed KV are built row by row, so they are not merged.
    if rows is None or not rows.max_rows or self.hive.kv is not None or plan.batch_to_run is None:
        return plan
    to_run, stays = mix(self, rows, plan.batch_to_run, plan.running_batch)
    return type(plan)(batch_to_run=to_run, running_batch=stays)
