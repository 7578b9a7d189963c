"""The CPU as an out-of-tree platform of SGLang (``sglang.srt.platforms``), in pure torch.

This is a separate module because importing SGLang's platform package resolves the current platform, which loads the
entry point in :mod:`sglang_patches.cpu_platform`. That module must be fully imported by then.
"""

from __future__ import annotations

from typing import Any

from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import SRTPlatform


class HiveCpuPlatform(CpuDeviceMixin, SRTPlatform):  # type: ignore[misc]
    """The pure-torch CPU platform. Out-of-tree platforms (``OOT``) do not use SGLang's sgl_kernel code paths."""

    _enum = PlatformEnum.OOT

    def get_default_attention_backend(self) -> str:
        return "torch_native"

    def get_mha_kv_pool_cls(self) -> type:
        from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

        return MHATokenToKVPool  # type: ignore[no-any-return]

    def get_paged_allocator_cls(self) -> type:
        from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator

        return PagedTokenToKVPoolAllocator  # type: ignore[no-any-return]

    def is_pin_memory_available(self, device: Any = None) -> bool:
        return False
