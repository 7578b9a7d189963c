"""CPU platform plugin: unmodified SGLang serves on a machine without sgl_kernel and without a GPU.

SGLang's own CPU engine (``SGLANG_USE_CPU_ENGINE=1``) wants a CPU build of sgl_kernel.  This out-of-tree
platform instead takes the pure-torch path through the model layers (dispatch key "native") with the
``torch_native`` attention backend; scheduler, radix cache, chunked prefill and endpoints are SGLang's own.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import SRTPlatform


def needed() -> bool:
    """Whether this machine needs the plugin: no accelerator, and SGLang's own CPU engine not asked for."""
    return not (
        torch.cuda.is_available()
        or torch.xpu.is_available()
        or os.getenv("SGLANG_USE_CPU_ENGINE", "0") == "1"
    )


def activate() -> str | None:
    """Entry point ``sglang.srt.platforms``: the platform class, or None to step aside."""
    return f"{__name__}.HiveCpuPlatform" if needed() else None


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
