"""CPU platform plugin: unmodified SGLang serves on a machine without sgl_kernel and without a GPU.

SGLang's own CPU engine (``SGLANG_USE_CPU_ENGINE=1``) needs a CPU build of sgl_kernel.  This out-of-tree platform
instead uses the pure-torch path through the model layers (dispatch key "native") with the ``torch_native`` attention
backend. Scheduler, radix cache, chunked prefill and endpoints are SGLang's own.
"""

from __future__ import annotations

import os

import torch


def needed() -> bool:
    """Whether this machine needs the plugin: no accelerator is available, and SGLang's own CPU engine is disabled."""
    return not (
        torch.cuda.is_available()
        or torch.xpu.is_available()
        or os.getenv("SGLANG_USE_CPU_ENGINE", "0") == "1"
    )


def activate() -> str | None:
    """Entry point ``sglang.srt.platforms``: return the platform class, or None if the platform is not needed."""
    return "sglang_patches.platforms.HiveCpuPlatform" if needed() else None
