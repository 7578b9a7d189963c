"""Hook on ``ScheduleBatch.prepare_for_extend``: what a replayed request reports as cached."""

from __future__ import annotations

from typing import Any


def after_prepare_for_extend(_result: None, self: Any, *_args: Any, **_kwargs: Any) -> None:
    """A replayed request enters with output tokens whose KV another request left in the radix cache.

    Upstream counts those as cached prompt tokens, and clients compute prompt minus cached.
    """
    for req in self.reqs:
        attached = getattr(req, "hive", None)
        if attached is not None and attached.arrived_with:
            req.cached_tokens = min(req.cached_tokens, len(req.origin_input_ids))
