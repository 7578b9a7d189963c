"""Adapter of SGLang 0.5.17: requests hold their KV themselves, and several classes implement caches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from sglang_patches.contract.releases.base import Release

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.mem_cache.radix_cache import TreeNode
    from sglang.srt.mem_cache.registry import TreeCacheBuildContext


class Storing:
    """Stores requests in the tree while they run and once more when they finish."""

    def cache_unfinished_req(self, req: Req, *args: Any, **kwargs: Any) -> None:
        with self.storing_for(req):  # type: ignore[attr-defined]
            super().cache_unfinished_req(req, *args, **kwargs)  # type: ignore[misc]

    def cache_finished_req(self, req: Req, *args: Any, **kwargs: Any) -> None:
        with self.storing_for(req):  # type: ignore[attr-defined]
            super().cache_finished_req(req, *args, **kwargs)  # type: ignore[misc]


class Release0517(Release):
    """Adapter of SGLang 0.5.17."""

    storing = Storing
    decode_rows = True

    def other_caches(self, ctx: TreeCacheBuildContext) -> dict[str, bool]:
        from sglang.srt.environ import envs
        from sglang.srt.utils.tensor_bridge import use_mlx

        return {
            "the radix cache is disabled": ctx.disable_radix_cache,
            "the model has sliding windows": ctx.is_hybrid_swa,
            "the model has state-space layers": ctx.is_hybrid_ssm,
            "sparse attention uses a separate cache": ctx.enable_hierarchical_cache and ctx.is_dsa,
            "SGLANG_EXPERIMENTAL_CPP_RADIX_TREE is set": envs.SGLANG_EXPERIMENTAL_CPP_RADIX_TREE.get(),
            "the unified tree is enabled": envs.SGLANG_ENABLE_UNIFIED_RADIX_TREE.get() or use_mlx(),
            "LMCache is enabled": ctx.server_args.enable_lmcache,
            "FlexKV is enabled": ctx.server_args.enable_flexkv,
        }

    def on_host(self, node: TreeNode) -> bool:
        return node.host_value is not None

    def announce_removal(self, tree: Any, leaf: TreeNode) -> None:
        tree._record_remove_event(leaf)

    def keeps_prefixes(self, scheduler: Scheduler) -> bool:
        return not scheduler.tree_cache.is_chunk_cache()

    def adapter_fits(self, scheduler: Scheduler, req: Req, adapters: set[str | None]) -> bool:
        return bool(scheduler._can_schedule_lora_req(req, adapters))

    def is_resident(self, req: Req, length: int) -> bool:
        return len(req.prefix_indices) == length and not req.host_hit_length

    def take_resident(self, scheduler: Scheduler, req: Req, length: int) -> None:
        from sglang.srt.managers.schedule_batch import ReqKvInfo

        scheduler.tree_cache.inc_lock_ref(req.last_node)
        scheduler.req_to_token_pool.alloc([req])
        scheduler.req_to_token_pool.write(
            (req.req_pool_idx, slice(0, length)), req.prefix_indices.to(torch.int32)
        )
        req.kv = ReqKvInfo(kv_allocated_len=length, swa_evicted_seqlen=0)
        req.kv_committed_len = length
        req.set_extend_range(length, length)

    def lend(self, scheduler: Scheduler, req: Req, length: int) -> bool:
        if req.req_pool_idx is None or not req.cache_protected_len <= length <= req.kv_committed_len:
            return False
        req._refresh_fill_ids()
        extended = req.extend_range
        req.set_extend_range(length, length)
        scheduler.tree_cache.cache_unfinished_req(req)
        req.extend_range = extended
        return True

    def process_prebuilt(self, scheduler: Scheduler, batch: ScheduleBatch) -> None:
        batch.process_prebuilt(scheduler.server_args, scheduler.future_map)

    def cache_salt(self, req: Req) -> str:
        return ""  # part of extra_key

    def attach_sampling_masks(
        self, sampler: Any, output: Any, probabilities: torch.Tensor | None, info: Any, chosen: torch.Tensor
    ) -> None:
        if not any(info.return_sampling_masks or []):
            return
        if probabilities is None:
            sampler._attach_greedy_sampling_mask_to_output(output, info, chosen)
            return
        data = sampler._compute_sampling_mask_from_probs(probabilities, info)
        sampler._attach_sampling_mask_to_output(output, info, chosen.long(), data)


RELEASE = Release0517()
