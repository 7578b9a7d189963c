"""Hook on ``ServerArgs._handle_cpu_backends``: a CPU keeps the sampler that was asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def around_handle_cpu_backends(original: Callable[[Any], None], self: Any) -> None:
    """Upstream sets ``sampling_backend = "pytorch"`` on a CPU, whatever the flag said."""
    asked = self.sampling_backend
    original(self)
    if asked is not None:
        self.sampling_backend = asked
