"""Replay inside the scheduler: slices, log-probabilities, streaming, and distinct samples that are being drawn.

A replayed token goes through the same steps as a generated one: appended to the output, shown to the grammar, and
checked for every way to finish.  Replay runs on the scheduler's thread, so a long one is cut into slices of
:data:`SLICE` steps, one for each loop of the scheduler; what is finished never reaches the queue.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from hive.server.logits_cache.logprobs import token_logprobs
from hive.server.logits_cache.replay import Stop, Verdict
from hive.server.logits_cache.trie import Node
from sglang_patches.requests.request_state import (
    PROBABILITY_KEY,
    REPEATS_KEY,
    REPLAYED_KEY,
    RequestState,
    is_penalised,
)
from sglang_patches.scheduling.state import SchedulerState

if TYPE_CHECKING:
    from sglang.srt.managers.io_struct import AbortReq
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.managers.scheduler import Scheduler

SLICE = 24
"""Steps of one replay between two batches: some 0.7 ms on one core.  A number of steps and no time, because all
tensor-parallel ranks must stop at the same token."""

DRAWING = 1024
"""Distinct samples in flight above which those that the engine dropped are looked for, though nobody waits."""


def begin(scheduler: Scheduler, req: Req) -> None:
    """Look a request up and replay its first slice."""
    state: SchedulerState = scheduler.hive
    attached: RequestState = req.hive
    assert state.cache is not None
    assert attached.cached is not None
    attached.replay = state.cache.begin(attached.cached)
    if attached.cached.sample is not None:
        state.drawing.append(req)
    if not _slice(scheduler, req):
        state.replaying.append(req)


def advance(scheduler: Scheduler) -> None:
    """Give every replay in progress a slice, and answer those that are over."""
    state: SchedulerState = scheduler.hive
    if state.drawing and (state.waiting or len(state.drawing) > DRAWING):
        _see_off_lost(scheduler)
    if state.replaying:
        replaying, state.replaying = state.replaying, []
        state.replaying += [req for req in replaying if not _slice(scheduler, req)]
    if state.answers:
        _answer(scheduler)


def _answer(scheduler: Scheduler) -> None:
    """Send on what was replayed: one message for all requests of a loop, to each of the processes behind."""
    state: SchedulerState = scheduler.hive
    answers, state.answers = list(state.answers.values()), {}
    for logprobs in (False, True):
        if some := [req for req in answers if req.return_logprob == logprobs]:
            scheduler.output_streamer.stream_output(some, logprobs)


def prefetch(scheduler: Scheduler) -> bool:
    """With nothing else to do, replay next samples ahead of their requests; whether there was something to do."""
    cache = scheduler.hive.cache
    if cache is None or not cache.prefetching:
        return False
    cache.prefetch(SLICE)
    return True


def _see_off_lost(scheduler: Scheduler) -> None:
    """The engine has many ways to drop a request; none of them may let later samples of its state wait for good."""
    if scheduler.server_args.pp_size > 1:
        return  # micro-batches in flight are not ours to look through
    batches = [scheduler.running_batch, scheduler.last_batch]
    batches += [batch for batch, _ in getattr(scheduler, "result_queue", ())]
    alive = {id(req) for batch in batches if batch is not None for req in batch.reqs}
    alive |= {id(req) for req in (*scheduler.waiting_queue, *scheduler.hive.replaying, scheduler.chunked_req)}
    for req in [req for req in scheduler.hive.drawing if id(req) not in alive]:
        depart(scheduler, req, ended=False)


def abort(scheduler: Scheduler, recv_req: AbortReq) -> None:
    """Drop what an abort names among the requests that are in no queue of the engine."""
    from sglang.srt.managers.io_struct import AbortReq

    state: SchedulerState = scheduler.hive
    gone = [req for req in state.replaying if recv_req.abort_all or req.rid == recv_req.rid]
    for req in gone:
        state.replaying.remove(req)
        state.answers.pop(id(req), None)
        scheduler.ipc_channels.send_to_tokenizer.send_output(AbortReq(rid=req.rid), req)
        depart(scheduler, req, ended=False)


def depart(scheduler: Scheduler, req: Req, *, ended: bool) -> None:
    """A request is over: see it off from the cache's books and from the counts.

    ``ended`` says that it came to a natural end and was not aborted.
    """
    state: SchedulerState = scheduler.hive
    attached: RequestState = req.hive
    if attached.departed:
        return
    attached.departed = True
    if attached.cached is not None and state.cache is not None:
        if attached.cached.sample is not None:
            state.drawing.remove(req)
        state.cache.depart(attached.cached, req.output_ids, ended=ended, replayed=attached.arrived_with)
        # Req is part of a reference cycle: what hangs on it would wait for the garbage collector.
        attached.cached = attached.replay = None
    if state.kv is not None:
        state.kv.departed(req)
    counts = {
        "cached_tokens": req.cached_tokens,
        "generated": len(req.output_ids) - attached.arrived_with,
        "replayed": attached.arrived_with,
    }
    state.agents.left(attached.agent, **counts)
    state.live.sessions.left(attached.session, generated=counts["generated"], replayed=counts["replayed"])
    if state.metrics is not None:
        agent = state.agents.profile(attached.agent).name
        state.metrics.finished(state.agents, agent, len(req.origin_input_ids), **counts)
        state.metrics.cache(state.cache)
        state.metrics.agents(state.agents, state.tree.book if state.tree is not None else None)


def _slice(scheduler: Scheduler, req: Req) -> bool:
    """Replay a slice of a request; whether the replay is over, and the request in the queue or answered."""
    state: SchedulerState = scheduler.hive
    attached: RequestState = req.hive
    replay, cache = attached.replay, state.cache
    assert replay is not None
    assert cache is not None
    known = replay.tokens
    if req.to_finish is None:
        assert attached.cached is not None
        cache.run(replay, attached.cached, req.output_ids, lambda token, node: _take(req, token, node), SLICE)
    attached.arrived_with = replay.tokens
    if new := replay.tokens - known:
        _mark(req, new)
    if replay.stop is None and req.to_finish is None:
        if new and req.stream:
            state.answers[id(req)] = req
        return False
    replay.stop = replay.stop or Stop.DIVERGED
    cache.concluded(replay)
    _conclude(scheduler, req, finished=replay.stop is Stop.FINISHED)
    return True


def _conclude(scheduler: Scheduler, req: Req, *, finished: bool) -> None:
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    attached: RequestState = req.hive
    attached.replay = None
    if attached.arrived_with:
        if req.return_logprob:
            # The model is asked for the log-probabilities of what it generates, and for no others.
            start = len(req.origin_input_ids) + len(req.output_ids)
            req.logprob_start_len = start
            processor = scheduler.batch_result_processor.logprob_result_processor
            processor._initialize_empty_logprob_containers(req)
        attached.may_join = not is_penalised(req)
    if finished:
        req.time_stats.set_wait_queue_entry_time()
        req.time_stats.set_quick_finish_time()
        depart(scheduler, req, ended=not isinstance(req.finished_reason, FINISH_ABORT))
    if finished or (attached.arrived_with and req.stream):
        scheduler.hive.answers[id(req)] = req
    if not finished:
        scheduler.hive.cache.queued(attached.cached, req.output_ids)
        scheduler._add_request_to_queue(req)


def _take(req: Req, token: int, node: Node) -> Verdict:
    """Put one chosen token into the request."""
    if req.return_logprob and not _add_logprobs(req, token, node):
        return Verdict.REFUSED
    req.output_ids.append(token)
    # The engine's order: a grammar that ends with this token finishes the request at the next one.
    req.update_finish_state()
    if req.grammar is not None:
        req.grammar.accept_token(token)
        # Joining the decode batch, upstream shows the last token to grammars that have not noted one.
        req.grammar.current_token = token
        req.grammar.finished = req.finished()
    return Verdict.FINISHED if req.finished() else Verdict.GOES_ON


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
    """Note ``count`` replayed tokens where the tokenizer process finds them."""
    if req.customized_info is None:
        req.customized_info = {}
    marks: dict[str, list[Any]] = req.customized_info
    marks.setdefault(REPLAYED_KEY, []).extend([1] * count)
    sample = req.hive.cached.sample
    if sample is not None:
        marks.setdefault(PROBABILITY_KEY, []).extend([sample.log_probability] * count)
        marks.setdefault(REPEATS_KEY, []).extend([sample.repeats] * count)
