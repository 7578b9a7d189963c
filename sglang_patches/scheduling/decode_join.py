"""A replayed request joins the running decode batch without a prefill.

After replay, a request has tokens whose KV was computed by an earlier request.  If all of that KV is in the radix
cache, there is nothing to prefill.  The request then enters the decode batch as if a prefill server had transferred
it (SGLang's path for PD disaggregation), and its next step is a decode step: the same kernels on the same numbers as
if it had generated its tokens itself.  If some of the KV is missing, the request is prefilled like any other.

A request may have replayed rows that the model was computing for another request.  The KV of the shared tokens is
then in the slots of a request that is still running.  That request's KV is stored in the tree so that both can use
it.
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
        # A batch supports a limited number of adapters. A request that needs one more waits, as for a prefill.
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
    """Whether the transfer path was tested with this setup: one flat KV pool, no data-parallel attention, no
    pipeline, and no priority queue, whose order a join would violate.
    """
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
    """Allocate the request's slots if all its KV is resident. Tried only once: a later prefill may compute other
    numbers.
    """
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
        scheduler.hive.shared_prefix += 1
    # The next decode step needs one slot per request. Upstream's own check retracts requests if there is none.
    release.take_resident(scheduler, req, resident)
    # Tokens that the model did not compute for this request count as cached prompt, as after a prefill.
    req.already_computed = len(req.output_ids) - 1
    scheduler.hive.joined += 1
    return True


def _lender(req: Req, length: int, running: Sequence[Req]) -> Req | None:
    """Return a running request that begins with the same tokens, if any. Requests with placed segments do not
    qualify.
    """
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
        # Most candidates already differ in the last token.
        at = length - 1 - len(other.origin_input_ids)
        if at >= 0 and other.output_ids[at] != wanted[length - 1]:
            continue
        if (other.origin_input_ids + other.output_ids)[:length] == wanted[:length]:
            return other
    return None
