"""The CPU as a platform of SGLang's (``sglang.srt.platforms``): pure torch, out of tree.

In a module of its own because importing SGLang's platform package resolves the current platform, which loads the
entry point of :mod:`sglang_patches.cpu_platform`: that one must not be half imported then.
"""

from __future__ import annotations

from typing import Any

from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import SRTPlatform


class HiveCpuPlatform(CpuDeviceMixin, SRTPlatform):  # type: ignore[misc]
    """The pure-torch CPU.  Being out of tree (``OOT``) keeps SGLang off its sgl_kernel code paths."""

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
