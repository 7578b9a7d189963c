"""Replay inside the scheduler: slices, log-probabilities, streaming, and distinct samples that are being drawn.

A replayed token goes through the same steps as a generated one: it is appended to the output, passed to the grammar
and checked against every stop condition.  Replay runs on the scheduler's thread, so a long replay is cut into slices
of :data:`SLICE` steps, one per scheduler loop.  A request that finishes in replay never reaches the queue.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from hive.server.logits_cache.head import token_logprobs
from hive.server.logits_cache.replay import Stop, Verdict
from hive.server.logits_cache.trie import Node
from sglang_patches.requests.request_state import (
    PROBABILITY_KEY,
    REPEATS_KEY,
    REPLAYED_KEY,
    RequestState,
    is_aborted,
    is_penalised,
)
from sglang_patches.scheduling.forced_tokens import record_forced
from sglang_patches.scheduling.hints import departed
from sglang_patches.scheduling.state import SchedulerState
from sglang_patches.scheduling.traffic import record

if TYPE_CHECKING:
    from sglang.srt.managers.io_struct import AbortReq
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.managers.scheduler import Scheduler

SLICE = 24
"""Steps of one replay between two batches: about 0.7 ms on one core.  The limit is a number of steps, not a time,
because all tensor-parallel ranks must stop at the same token.
"""

DRAWING = 1024
"""Above this number of distinct samples in flight, those that the engine dropped are searched for even if no request
waits.
"""


def begin(scheduler: Scheduler, req: Req) -> None:
    """Look up a request and replay its first slice."""
    state: SchedulerState = scheduler.hive
    attached: RequestState = req.hive
    assert state.cache is not None
    assert attached.cached is not None
    attached.replay = state.cache.begin(attached.cached)
    if attached.cached.sample is not None:
        state.drawing.append(req)
    if not _run_slice(scheduler, req):
        state.replaying.append(req)


def advance(scheduler: Scheduler) -> None:
    """Run a slice of every replay in progress, send the new outputs, and update the metrics."""
    state: SchedulerState = scheduler.hive
    if state.drawing and (state.waiting or len(state.drawing) > DRAWING):
        _finish_lost(scheduler)
    if state.replaying:
        replaying, state.replaying = state.replaying, []
        state.replaying += [req for req in replaying if not _run_slice(scheduler, req)]
    if state.pending_outputs:
        _send_outputs(scheduler)
    if state.metrics is not None:
        accounting = state.tree.accounting if state.tree is not None else None
        state.metrics.update(state.cache, state.agents, accounting)


def _send_outputs(scheduler: Scheduler) -> None:
    """Send the replayed tokens: one message per process for all requests of a loop."""
    state: SchedulerState = scheduler.hive
    outputs, state.pending_outputs = list(state.pending_outputs.values()), {}
    for logprobs in (False, True):
        if some := [req for req in outputs if req.return_logprob == logprobs]:
            scheduler.output_streamer.stream_output(some, logprobs)


def prefetch(scheduler: Scheduler) -> bool:
    """On an idle scheduler, replay next samples before they are requested; return whether there was anything to do."""
    cache = scheduler.hive.cache
    if cache is None or not cache.prefetching:
        return False
    cache.prefetch(SLICE)
    return True


def _finish_lost(scheduler: Scheduler) -> None:
    """Finish distinct samples that the engine has dropped, so that later samples of their states need not wait."""
    if scheduler.server_args.pp_size > 1:
        return  # micro-batches in flight cannot be inspected
    batches = [scheduler.running_batch, scheduler.last_batch]
    batches += [batch for batch, _ in getattr(scheduler, "result_queue", ())]
    alive = {id(req) for batch in batches if batch is not None for req in batch.reqs}
    alive |= {id(req) for req in (*scheduler.waiting_queue, *scheduler.hive.replaying, scheduler.chunked_req)}
    for req in [req for req in scheduler.hive.drawing if id(req) not in alive]:
        finish(scheduler, req, ended=False)


def abort(scheduler: Scheduler, recv_req: AbortReq) -> None:
    """Abort requests in replay that an abort message names: they are in no queue of the engine."""
    from sglang.srt.managers.io_struct import AbortReq

    state: SchedulerState = scheduler.hive
    gone = [req for req in state.replaying if recv_req.abort_all or req.rid == recv_req.rid]
    for req in gone:
        state.replaying.remove(req)
        state.pending_outputs.pop(id(req), None)
        scheduler.ipc_channels.send_to_tokenizer.send_output(AbortReq(rid=req.rid), req)
        finish(scheduler, req, ended=False)


def finish(scheduler: Scheduler, req: Req, *, ended: bool) -> None:
    """Finish a request: release it from the Logits Cache and the segment store, and count it.

    ``ended`` is true if the request came to a natural end and was not aborted or dropped.
    """
    state: SchedulerState = scheduler.hive
    attached: RequestState = req.hive
    if attached.finished:
        return
    attached.finished = True
    if attached.cached is not None and state.cache is not None:
        record_forced(state.cache, req)
        if attached.cached.sample is not None:
            state.drawing.remove(req)
        state.cache.depart(attached.cached, req.output_ids, ended=ended, replayed=attached.arrived_with)
        # Req is part of a reference cycle, so objects it refers to would wait for the garbage collector.
        attached.cached = attached.replay = None
    if state.kv is not None:
        state.kv.release(req)
    departed(state, req, ended=ended)
    counts = {
        "cached_tokens": req.cached_tokens,
        "generated": len(req.output_ids) - attached.arrived_with,
        "replayed": attached.arrived_with,
    }
    record(state, req)
    state.steps.forced_tokens += attached.forced
    state.agents.left(attached.agent, **counts)
    state.live.sessions.left(attached.session, generated=counts["generated"], replayed=counts["replayed"])
    if state.metrics is not None:
        agent = state.agents.profile(attached.agent).name
        state.metrics.finished(state.agents, agent, len(req.origin_input_ids), **counts)


def _run_slice(scheduler: Scheduler, req: Req) -> bool:
    """Replay a slice of a request; return whether the replay is over, with the request queued or finished."""
    state: SchedulerState = scheduler.hive
    attached: RequestState = req.hive
    replay, cache = attached.replay, state.cache
    assert replay is not None
    assert cache is not None
    known = replay.tokens
    if req.to_finish is None:
        assert attached.cached is not None
        cache.run(
            replay, attached.cached, req.output_ids, lambda token, node: _append(req, token, node), SLICE
        )
    # Only a replay that has just finished the request has some.
    replay.tokens += attached.forced
    attached.arrived_with = replay.tokens
    if new := replay.tokens - known:
        _mark(req, new)
    if replay.stop is None and req.to_finish is None:
        if new and req.stream:
            state.pending_outputs[id(req)] = req
        return False
    replay.stop = replay.stop or Stop.DIVERGED
    cache.concluded(replay)
    _conclude(scheduler, req, finished=replay.stop is Stop.FINISHED)
    return True


def _conclude(scheduler: Scheduler, req: Req, *, finished: bool) -> None:
    attached: RequestState = req.hive
    attached.replay = None
    if attached.arrived_with:
        if req.return_logprob:
            # The model computes log-probabilities only for the tokens that it generates.
            start = len(req.origin_input_ids) + len(req.output_ids)
            req.logprob_start_len = start
            processor = scheduler.batch_result_processor.logprob_result_processor
            processor._initialize_empty_logprob_containers(req)
        attached.may_join = not is_penalised(req)
    if finished:
        req.time_stats.set_wait_queue_entry_time()
        req.time_stats.set_quick_finish_time()
        finish(scheduler, req, ended=not is_aborted(req))
    if finished or (attached.arrived_with and req.stream):
        scheduler.hive.pending_outputs[id(req)] = req
    if not finished:
        scheduler.hive.cache.queued(attached.cached, req.output_ids)
        scheduler._add_request_to_queue(req)


def _append(req: Req, token: int, node: Node) -> Verdict:
    """Append one replayed token to the request."""
    if req.return_logprob and not _add_logprobs(req, token, node):
        return Verdict.REFUSED
    req.output_ids.append(token)
    # As in the engine, a grammar that ends with this token finishes the request at the next one.
    req.update_finish_state()
    if req.grammar is not None:
        req.grammar.accept_token(token)
        # When a request joins the decode batch, upstream passes the last token to grammars that have no current
        # token.
        req.grammar.current_token = token
        req.grammar.finished = req.finished()
    return Verdict.FINISHED if req.finished() else Verdict.CONTINUES


def _add_logprobs(req: Req, token: int, node: Node) -> bool:
    wanted = req.logprob
    temperature = 1.0 if _ORIGINAL_LOGPROBS else req.hive.cached.rule.temperature
    found = token_logprobs(
        node.head, temperature, token, wanted.top_logprobs_num, wanted.token_ids_logprob or ()
    )
    if found is None:
        return False
    wanted.output_token_logprobs_val.append(found.token)
    wanted.output_token_logprobs_idx.append(token)
    if wanted.top_logprobs_num > 0:
        wanted.output_top_logprobs_val.append(found.top_values)
        wanted.output_top_logprobs_idx.append(found.top_ids)
    if wanted.token_ids_logprob is not None:
        wanted.output_token_ids_logprobs_val.append(found.chosen_values)
        wanted.output_token_ids_logprobs_idx.append(list(wanted.token_ids_logprob))
    return True


_ORIGINAL_LOGPROBS = os.environ.get("SGLANG_RETURN_ORIGINAL_LOGPROB", "").lower() in ("1", "true")
"""SGLang's switch for log-probabilities before temperature."""


def _mark(req: Req, count: int) -> None:
    """Mark ``count`` tokens as replayed, for the tokenizer process."""
    if req.customized_info is None:
        req.customized_info = {}
    marks: dict[str, list[Any]] = req.customized_info
    marks.setdefault(REPLAYED_KEY, []).extend([1] * count)
    sample = req.hive.cached.sample
    if sample is not None:
        marks.setdefault(PROBABILITY_KEY, []).extend([sample.log_probability] * count)
        marks.setdefault(REPEATS_KEY, []).extend([sample.repeats] * count)
