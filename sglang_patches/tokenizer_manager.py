"""Hooks on ``TokenizerManager``: the one way every endpoint's requests take to the scheduler.

Requests of the main endpoints were checked and tagged at the door (:mod:`sglang_patches.request_door`); here all
others are checked, and every answer gets ``meta_info.hive``, which says what was done.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

from hive.request_checks import check_request_object
from hive.request_tag import MAX_SAMPLE
from sglang_patches.request_state import PROBABILITY_KEY, REPEATS_KEY, REPLAYED_KEY


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


def around_init_child_req_state(
    original: Callable[..., None], self: Any, logical_rid: str, obj: Any, *args: Any, **kwargs: Any
) -> None:
    """Number the samples of a request with ``n`` > 1; upstream's first child only warms the radix cache."""
    original(self, logical_rid, obj, *args, **kwargs)
    parent = self.rid_to_state[logical_rid]
    parent.hive_children = getattr(parent, "hive_children", -1) + 1
    self.rid_to_state[obj.rid].hive_child = parent.hive_children


def before_send_one_request(self: Any, tokenized_obj: Any) -> None:
    """Give each sample of a request with ``n`` > 1 its number: upstream gives all of them one seed."""
    child = getattr(self.rid_to_state.get(tokenized_obj.rid), "hive_child", 0)
    if child < 2:
        return
    params = copy.copy(tokenized_obj.sampling_params)
    custom = dict(params.custom_params or {})
    tag = dict(custom.get("hive") or {})
    tag["sample"] = min(tag.get("sample", 0) + child - 1, MAX_SAMPLE)
    params.custom_params = {**custom, "hive": tag}
    tokenized_obj.sampling_params = params


def _annotate(meta_info: dict[str, Any], tag: dict[str, Any]) -> None:
    # In a batch, rows beside a replayed one carry None in its place.
    replayed = sum(mark is not None for mark in meta_info.pop(REPLAYED_KEY, ()))
    generated = meta_info["completion_tokens"] - replayed
    meta_info["hive"] = done = {**tag, "tokens_replayed": replayed, "tokens_generated": generated}
    for key, name in ((PROBABILITY_KEY, "log_probability"), (REPEATS_KEY, "repeats")):
        said = [value for value in meta_info.pop(key, ()) if value is not None]
        if said:
            done[name] = said[-1]


def _tag(obj: Any, index: int) -> dict[str, Any]:
    """The tag of the ``index``-th answer to a request; a batch may carry one for each of its prompts."""
    params = getattr(obj, "sampling_params", None)
    if isinstance(params, list):
        params = params[index] if index < len(params) else None
    custom = (params or {}).get("custom_params") or {}
    tag = custom.get("hive")
    return tag if isinstance(tag, dict) else {}
