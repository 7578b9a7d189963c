"""Hook on ``Scheduler.get_new_batch_prefill``: a replayed request joins the running decode batch directly.

Replay leaves a request with tokens whose KV an earlier request computed.  As long as all of it is in the radix cache
there is nothing to prefill: the request enters as if a prefill server had handed it over (SGLang's path for PD
disaggregation), and its next step is a decode step, the same kernels on the same numbers as if it had generated
its tokens itself.  Where some of the KV is gone, it is prefilled like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
    from sglang.srt.managers.scheduler import Scheduler


def around_get_new_batch_prefill(
    original: Callable[..., Any], self: Scheduler, running_batch: ScheduleBatch
) -> Any:
    """Let replayed requests in before the queue is looked at."""
    if any(hasattr(req, "hive") and req.hive.may_join for req in self.waiting_queue):
        running_batch = _join(self, running_batch)
    return original(self, running_batch)


def _join(scheduler: Scheduler, running_batch: ScheduleBatch) -> ScheduleBatch:
    from sglang.srt.managers.schedule_batch import ScheduleBatch

    if not _supported(scheduler) or running_batch.batch_is_full or scheduler.chunked_req is not None:
        return running_batch
    room = scheduler.get_num_allocatable_reqs(len(running_batch.reqs))
    joining: list[Req] = []
    adapters = {req.lora_id for req in running_batch.reqs if not req.finished()}
    for req in scheduler.waiting_queue:
        if len(joining) == room:
            break
        if not (hasattr(req, "hive") and req.hive.may_join):
            continue
        # A batch has places for so many adapters; whoever needs one more waits, as for a prefill.
        if scheduler.enable_lora and not scheduler._can_schedule_lora_req(req, adapters):
            continue
        if _admit(scheduler, req):
            joining.append(req)
            adapters.add(req.lora_id)
    if not joining:
        return running_batch
    chosen = {id(req) for req in joining}
    scheduler.waiting_queue = [req for req in scheduler.waiting_queue if id(req) not in chosen]
    for req in joining:
        req.time_stats.set_forward_entry_time()
    batch = ScheduleBatch.init_new(
        joining,
        scheduler.req_to_token_pool,
        scheduler.token_to_kv_pool_allocator,
        scheduler.tree_cache,
        scheduler.model_config,
        scheduler.enable_overlap,
        scheduler.spec_algorithm,
    )
    batch.prepare_for_prebuilt()
    batch.process_prebuilt(scheduler.server_args, scheduler.future_map)
    if running_batch.is_empty():
        return batch
    running_batch.merge_batch(batch)
    return running_batch


def _supported(scheduler: Scheduler) -> bool:
    """What the hand-over path was tried with: one flat KV pool, no data-parallel attention, no pipeline, no queue
    with priorities that a join would pass by."""
    return not (
        scheduler.enable_priority_scheduling
        or scheduler.is_hybrid_swa
        or scheduler.is_hybrid_ssm
        or scheduler.require_mlp_sync
        or scheduler.enable_hisparse
        or scheduler.server_args.pp_size > 1
        or scheduler.tree_cache.is_chunk_cache()
    )


def _admit(scheduler: Scheduler, req: Req) -> bool:
    """Give the request its slot and its KV if all of it is resident; asks once, since a later prefill may differ."""
    from sglang.srt.managers.schedule_batch import ReqKvInfo

    req.hive.may_join = False
    req.init_next_round_input(scheduler.tree_cache)
    resident = len(req.origin_input_ids) + len(req.output_ids) - 1
    if len(req.prefix_indices) != resident or req.host_hit_length:
        return False
    # The next decode step needs one token of room per request; upstream's own check retracts if there is none.
    scheduler.tree_cache.inc_lock_ref(req.last_node)
    scheduler.req_to_token_pool.alloc([req])
    scheduler.req_to_token_pool.write(
        (req.req_pool_idx, slice(0, resident)), req.prefix_indices.to(torch.int32)
    )
    req.kv = ReqKvInfo(kv_allocated_len=resident, swa_evicted_seqlen=0)
    req.kv_committed_len = resident
    req.set_extend_range(resident, resident)
    # What the model never computed for this request is cached prompt, as after a prefill.
    req.already_computed = len(req.output_ids) - 1
    scheduler.hive.joined += 1
    return True
