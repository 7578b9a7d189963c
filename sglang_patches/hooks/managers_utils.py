"""Hook on ``GenerationBatchResult.copy_to_cpu``: copies recorded rows to the host with the drawn tokens.

Overlap scheduling calls this on its copy stream just before it records ``copy_done``. That event therefore covers the
rows, too, and no extra wait is needed.
"""

from __future__ import annotations

from typing import Any

from sglang_patches.forward.sampler import ROWS_ATTRIBUTE


def before_copy_to_cpu(self: Any, *_args: Any, **_kwargs: Any) -> None:
    """Start the copy of a batch's rows."""
    from sglang.srt.managers.utils import _async_d2h

    rows = getattr(self.logits_output, ROWS_ATTRIBUTE, None)
    if rows is not None:
        rows.to_host(_async_d2h)
