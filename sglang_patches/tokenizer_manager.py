"""Hooks on ``TokenizerManager``: the one way every endpoint's requests take to the scheduler.

Requests of the main endpoints were checked at the door (:mod:`sglang_patches.request_door`); here all others are
checked, the tag of the headers is written over that of the body, and every answer gets ``meta_info.hive``, which says
what was done.
"""

from __future__ import annotations

import copy
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import Any

from hive_frontend.wire import MAX_SAMPLE, TAG_KEY

from hive.request_checks import check_request_object
from hive.request_tag import RequestError, header_tag, tag_in
from sglang_patches.request_door import ROUTE
from sglang_patches.request_state import KV_KEY, PROBABILITY_KEY, REPEATS_KEY, REPLAYED_KEY


def around_generate_request(
    original: Callable[..., AsyncGenerator[Any, None]], self: Any, obj: Any, request: Any = None
) -> AsyncIterator[Any]:
    """Check and tag the request, and annotate every answer: a dict, or a list of them for a batch without streaming."""
    return _annotated(original, self, obj, request)


async def _annotated(
    original: Callable[..., AsyncGenerator[Any, None]], manager: Any, obj: Any, request: Any
) -> AsyncIterator[Any]:
    # Endpoints without a door of their own (responses, Anthropic's messages, ...) end up here, too.
    if isinstance(obj.input_ids, Mapping):
        # Ollama's chat hands over all that the tokenizer returns.
        obj.input_ids = obj.input_ids["input_ids"]
    if not _checked_at_the_door(request, obj.sampling_params):
        check_request_object(obj, manager.hive_limits)
    if tag := header_tag.get().to_dict():
        params = obj.sampling_params
        if isinstance(params, list):
            obj.sampling_params = [_tagged(item, tag) for item in params]
        else:
            obj.sampling_params = _tagged(params, tag)
    if getattr(obj, "session_params", None) is not None and any(
        "tenant" in _tag(obj, at) for at in range(_sets(obj))
    ):
        raise RequestError("session_params", "must not be set by a tenant: SGLang's sessions are everybody's")
    segments = manager.hive_segments
    needed = await segments.prepare(obj) if segments is not None and hasattr(obj, "text") else ()
    async with aclosing(original(manager, obj, request)) as answers:
        async for answer in answers:
            for index, item in enumerate(answer if isinstance(answer, list) else [answer]):
                if isinstance(item, dict) and "completion_tokens" in item.get("meta_info", {}):
                    annotate(item["meta_info"], _tag(obj, item.get("index", index)))
                    if needed:
                        segments.answered(needed, item["meta_info"])
            yield answer


def _checked_at_the_door(request: Any, params: Any) -> bool:
    """Whether a request has the fields of the body that was checked, as they came.

    Other endpoints make fields of their own, and this one takes some of headers if it is told to.  Integers of more
    than 64 bits are floats to the door's parser and integers to the endpoint's: only custom parameters may be so large.
    """
    scope = getattr(request, "scope", None) or {}
    if scope.get(ROUTE) != "/generate" or _HEADER_OVERRIDES or isinstance(params, list):
        return False
    return ((params or {}).get("custom_params") or {}).keys() <= {TAG_KEY}


_HEADER_OVERRIDES = os.environ.get("SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES", "").lower() not in (
    "",
    "0",
    "false",
)


def before_send_one_request(self: Any, tokenized_obj: Any) -> None:
    """Give each sample of a request with ``n`` > 1 its number: upstream gives all of them one seed.

    They are sent one after the other with one object of parameters, in which each leaves the number of the next.
    (Before them, upstream warms the radix cache with a copy of it.)
    """
    shared = tokenized_obj.sampling_params
    tokenized_obj.sampling_params = copy.copy(shared)
    custom = dict(shared.custom_params or {})
    tag = dict(custom.get(TAG_KEY) or {})
    tag["sample"] = min(tag.get("sample", 0) + 1, MAX_SAMPLE)
    shared.custom_params = {**custom, TAG_KEY: tag}


def _tagged(params: dict[str, Any] | None, tag: dict[str, Any]) -> dict[str, Any]:
    """Sampling parameters with a tag: field by field, it wins over what they have."""
    custom = (params or {}).get("custom_params") or {}
    return {**(params or {}), "custom_params": {**custom, TAG_KEY: {**(custom.get(TAG_KEY) or {}), **tag}}}


def annotate(meta_info: dict[str, Any], tag: dict[str, Any]) -> None:
    """Say in the last or a later answer to a request what was done, beside its tag."""
    # In a batch, rows beside a replayed one carry None in its place.
    replayed = sum(mark is not None for mark in meta_info.pop(REPLAYED_KEY, ()))
    generated = meta_info["completion_tokens"] - replayed
    meta_info["hive"] = done = {**tag, "tokens_replayed": replayed, "tokens_generated": generated}
    for key, name in ((PROBABILITY_KEY, "log_probability"), (REPEATS_KEY, "repeats"), (KV_KEY, "kv")):
        said = [value for value in meta_info.pop(key, ()) if value is not None]
        if said:
            done[name] = said[-1]


def _sets(obj: Any) -> int:
    """How many sets of sampling parameters a request has."""
    return len(obj.sampling_params) if isinstance(obj.sampling_params, list) else 1


def _tag(obj: Any, index: int) -> dict[str, Any]:
    """The tag of the ``index``-th answer to a request; a batch may carry one for each of its prompts."""
    params = getattr(obj, "sampling_params", None)
    if isinstance(params, list):
        params = params[index] if index < len(params) else None
    return tag_in((params or {}).get("custom_params"))
