"""Hooks on ``LoRAManager``: LoRA adapters on a machine without a GPU.

Upstream's torch_native LoRA backend needs no GPU, but pins the host memory of its indices, which needs a driver.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class _Unpinned(TorchFunctionMode):
    """While active, allocates pageable memory instead of pinned memory."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is torch.Tensor.pin_memory:
            return args[0]
        options = dict(kwargs or {})
        options.pop("pin_memory", None)
        return func(*args, **options)


def around_init_state(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """Keep the layers' offsets out of pinned memory."""
    with _Unpinned():
        return original(self, *args, **kwargs)


def around_prepare_lora_batch(
    original: Callable[..., Any], self: Any, forward_batch: Any, *args: Any, **kwargs: Any
) -> Any:
    """Keep the adapter indices of a batch out of pinned memory."""
    with _Unpinned():
        return original(self, forward_batch, *args, **kwargs)
