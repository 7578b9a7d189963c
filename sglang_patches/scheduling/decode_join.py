"""A replayed request joins the running decode batch directly, without a prefill.

Replay leaves a request with tokens whose KV an earlier request computed.  As long as all of it is in the radix cache
there is nothing to prefill: the request enters as if a prefill server had handed it over (SGLang's path for PD
disaggregation), and its next step is a decode step, the same kernels on the same numbers as if it had generated
its tokens itself.  Where some of the KV is gone, it is prefilled like any other.

A request that drew its tokens from rows which the model was computing for another one leaves that one at some token:
the KV behind is in the slots of a request that still runs.  It is put into the tree then, for both of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sglang_patches.contract.releases import current

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
    from sglang.srt.managers.scheduler import Scheduler


def join(scheduler: Scheduler, running_batch: ScheduleBatch) -> ScheduleBatch:
    from sglang.srt.managers.schedule_batch import ScheduleBatch

    release = current()
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
        if scheduler.enable_lora and not release.adapter_fits(scheduler, req, adapters):
            continue
        if _admit(scheduler, req, running_batch.reqs):
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
    release.process_prebuilt(scheduler, batch)
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
        or not current().keeps_prefixes(scheduler)
    )


def _admit(scheduler: Scheduler, req: Req, running: Sequence[Req]) -> bool:
    """Give the request its slot and its KV if all of it is resident; asks once, since a later prefill may differ."""
    release = current()
    req.hive.may_join = False
    req.init_next_round_input(scheduler.tree_cache)
    resident = len(req.origin_input_ids) + len(req.output_ids) - 1
    if not release.is_resident(req, resident):
        lender = _lender(req, resident, running)
        if lender is None or not release.lend(scheduler, lender, resident):
            return False
        req.init_next_round_input(scheduler.tree_cache)
        if not release.is_resident(req, resident):
            return False
        scheduler.hive.lent += 1
    # The next decode step needs one token of room per request; upstream's own check retracts if there is none.
    release.take_resident(scheduler, req, resident)
    # What the model never computed for this request is cached prompt, as after a prefill.
    req.already_computed = len(req.output_ids) - 1
    scheduler.hive.joined += 1
    return True


def _lender(req: Req, length: int, running: Sequence[Req]) -> Req | None:
    """A running request that begins with the same tokens; what segments are placed in is no such beginning."""
    wanted = req.origin_input_ids + req.output_ids
    for other in running:
        attached = getattr(other, "hive", None)
        if (
            attached is None
            or attached.kv is not None
            or other.finished()
            or other.extra_key != req.extra_key
        ):
            continue
        if len(other.origin_input_ids) + len(other.output_ids) <= length:
            continue
        # Most differ in the last token already.
        at = length - 1 - len(other.origin_input_ids)
        if at >= 0 and other.output_ids[at] != wanted[length - 1]:
            continue
        if (other.origin_input_ids + other.output_ids)[:length] == wanted[:length]:
            return other
    return None
