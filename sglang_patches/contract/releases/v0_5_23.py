"""Adapter of SGLang 0.5.23: a separate record holds a request's KV, and one tree serves every kind of cache.

By default that tree is ``UnifiedRadixCache``, whose core may be in Rust.  ``RadixCache`` still exists, with the same
interface, for models whose layers all have sliding windows; Hive extends it as in 0.5.17.  Only the unified tree has
a host tier, so SGLang's own eviction decides under ``--enable-hierarchical-cache``.
"""

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
    """Stores requests in the tree at checkpoints; the tree treats the last one like the others."""

    def checkpoint(self, req: Req, *args: Any, **kwargs: Any) -> None:
        with self.storing_for(req):  # type: ignore[attr-defined]
            super().checkpoint(req, *args, **kwargs)  # type: ignore[misc]

    def on_release(self, req: Req, *args: Any, **kwargs: Any) -> None:
        # If nothing was stored, the request's use of its prefix is counted here.
        with self.storing_for(req):  # type: ignore[attr-defined]
            super().on_release(req, *args, **kwargs)  # type: ignore[misc]


class Release0523(Release):
    """Adapter of SGLang 0.5.23."""

    storing = Storing
    unset_params = frozenset({"watermark"})

    def other_caches(self, ctx: TreeCacheBuildContext) -> dict[str, bool]:
        from sglang.srt.hardware_backend.mlx.runtime import use_mlx
        from sglang.srt.mem_cache.allocator.page_interleave import page_interleave_shard_size
        from sglang.srt.runtime_context import get_disagg, get_memory, get_serving

        memory = get_memory()
        return {
            "the radix cache is disabled": ctx.disable_radix_cache,
            "the model has sliding windows": ctx.is_hybrid_swa,
            "the model has state-space layers": ctx.is_hybrid_ssm,
            "only the unified tree of this SGLang has a host tier": ctx.enable_hierarchical_cache,
            "retracted KV is kept on the host": (
                get_disagg().disaggregation_decode_retraction_backup == "host_pool"
            ),
            "an external cache is enabled": memory.enable_unified_cache_external_linker,
            "LMCache is enabled": memory.enable_lmcache,
            "FlexKV is enabled": memory.enable_flexkv,
            "streaming sessions are enabled": get_serving().enable_streaming_session,
            "sessions in the radix cache are enabled": memory.enable_session_radix_cache,
            "--radix-eviction-policy is tlru": ctx.params.eviction_policy == "tlru",
            "the KV is interleaved over ranks by pages": (
                page_interleave_shard_size(ctx.params.token_to_kv_pool_allocator) > 1
            ),
            "the device uses its own kind of cache": (
                use_mlx() or hasattr(ctx.params.req_to_token_pool, "req_to_c128_sidecar")
            ),
        }

    def on_host(self, node: TreeNode) -> bool:
        return False

    def announce_removal(self, tree: Any, leaf: TreeNode) -> None:
        tree.kv_events.record_remove(leaf)

    def keeps_prefixes(self, scheduler: Scheduler) -> bool:
        return bool(scheduler.tree_cache.supports_prefix_sharing())

    def adapter_fits(self, scheduler: Scheduler, req: Req, adapters: set[str | None]) -> bool:
        return bool(scheduler.can_schedule_lora_req(req, adapters))

    def is_resident(self, req: Req, length: int) -> bool:
        return bool(req.prefix_len == length and not req.needs_host_load_back())

    def take_resident(self, scheduler: Scheduler, req: Req, length: int) -> None:
        tree = scheduler.tree_cache
        req.lock = tree.lock(req.last_node)
        scheduler.req_to_token_pool.alloc([req])
        scheduler.req_to_token_pool.write(
            (req.kv.req_pool_idx, slice(0, length)), tree.prefix_device_indices(req).to(torch.int32)
        )
        req.kv.kv_allocated_len = req.kv.kv_committed_len = length
        req.extend_end = length

    def process_prebuilt(self, scheduler: Scheduler, batch: ScheduleBatch) -> None:
        batch.process_prebuilt(scheduler.future_map)

    def cache_salt(self, req: Req) -> str:
        return req.cache_salt or ""

    def attach_sampling_masks(
        self, sampler: Any, output: Any, probabilities: torch.Tensor | None, info: Any, chosen: torch.Tensor
    ) -> None:
        from sglang.srt.layers.sampler import _SamplingMaskCapture

        rows = info.sampling_mask_batch_indices
        if rows is None:
            return
        supports = info.sampling_support_logprobs_capture_indices
        if probabilities is None:
            output.sampling_mask_output = sampler._build_greedy_sampling_mask_output(rows, chosen, supports)
            return
        kept, ids = _truncated(
            *(
                tensor.index_select(0, rows)
                for tensor in (probabilities, info.top_ks, info.top_ps, info.min_ps)
            )
        )
        capture = _SamplingMaskCapture(weights=kept, token_ids=ids, selected_weight=None, batch_rows=rows)
        output.sampling_mask_output = sampler._build_sampling_mask_output(chosen, capture, supports)


def _truncated(
    probabilities: torch.Tensor, top_ks: torch.Tensor, top_ps: torch.Tensor, min_ps: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what top-k, top-p and min-p keep of rows ``[batch, vocabulary]``: weights in descending order, and their
    ids.
    """
    weights, ids = probabilities.sort(dim=-1, descending=True)
    before = weights.cumsum(dim=-1) - weights
    places = torch.arange(weights.shape[-1], device=weights.device)
    dropped = (places >= top_ks[:, None]) | (before > top_ps[:, None])
    dropped |= weights < (weights[:, 0] * min_ps)[:, None]
    return weights.masked_fill(dropped, 0.0), ids.to(torch.int32)


RELEASE = Release0523()
