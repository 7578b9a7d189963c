"""Hook on ``TokenizerManager.generate_request``: the one way every endpoint's requests take to the scheduler.

Requests of the main endpoints were checked and tagged at the door (:mod:`sglang_patches.request_door`); here all
others are checked, and every answer gets ``meta_info.hive``, which says what was done.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

from hive.request_checks import check_request_object
from sglang_patches.scheduler import REPLAYED_KEY


def around_generate_request(
    original: Callable[..., AsyncGenerator[Any, None]], self: Any, obj: Any, request: Any = None
) -> AsyncIterator[Any]:
    """Check the request, and annotate every answer (a dict, or a list of dicts for a batch without streaming)."""
    return _annotated(original, self, obj, request)


async def _annotated(
    original: Callable[..., AsyncGenerator[Any, None]], manager: Any, obj: Any, request: Any
) -> AsyncIterator[Any]:
    # Endpoints without a door of their own (responses, Anthropic's messages, ...) end up here, too.
    check_request_object(obj, manager.hive_limits)
    async with aclosing(original(manager, obj, request)) as answers:
        async for answer in answers:
            for index, item in enumerate(answer if isinstance(answer, list) else [answer]):
                if isinstance(item, dict) and "completion_tokens" in item.get("meta_info", {}):
                    _annotate(item["meta_info"], _tag(obj, item.get("index", index)))
            yield answer


def _annotate(meta_info: dict[str, Any], tag: dict[str, Any]) -> None:
    # In a batch, rows beside a replayed one carry None in its place.
    replayed = sum(mark is not None for mark in meta_info.pop(REPLAYED_KEY, ()))
    generated = meta_info["completion_tokens"] - replayed
    meta_info["hive"] = {**tag, "tokens_replayed": replayed, "tokens_generated": generated}


def _tag(obj: Any, index: int) -> dict[str, Any]:
    """The tag of the ``index``-th answer to a request; a batch may carry one for each of its prompts."""
    params = getattr(obj, "sampling_params", None)
    if isinstance(params, list):
        params = params[index] if index < len(params) else None
    custom = (params or {}).get("custom_params") or {}
    tag = custom.get("hive")
    return tag if isinstance(tag, dict) else {}
