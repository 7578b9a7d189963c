"""Hooks on ``TokenizerManager``: the one way every endpoint's requests take to the scheduler.

Requests of the main endpoints were checked at the door (:mod:`sglang_patches.http.request_door`); here all others are
checked, the tag of the headers is written over that of the body, and every answer gets ``meta_info.hive``, which says
what was done.
"""

from __future__ import annotations

import copy
import os
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import Any

from hive_frontend.wire import MAX_SAMPLE, TAG_KEY

from hive.server.request_checks import check_request_object
from hive.server.request_tag import RequestError, header_tag, tag_in
from sglang_patches.http.meta_info import annotate
from sglang_patches.http.request_door import ROUTE


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


def _sets(obj: Any) -> int:
    """How many sets of sampling parameters a request has."""
    return len(obj.sampling_params) if isinstance(obj.sampling_params, list) else 1


def _tag(obj: Any, index: int) -> dict[str, Any]:
    """The tag of the ``index``-th answer to a request; a batch may carry one for each of its prompts."""
    params = getattr(obj, "sampling_params", None)
    if isinstance(params, list):
        params = params[index] if index < len(params) else None
    return tag_in((params or {}).get("custom_params"))


CRASHED = 1
"""The launcher's exit status."""


LAST_WORDS_S = 1.0
"""A process that reports an error ends a moment later; then its status is known."""


def running_phase_sigquit_handler(self: Any, signum: Any = None, frame: Any = None) -> None:
    """A child has failed, or has told so: end all the others, and say which it was."""
    from sglang.srt.utils import kill_process_tree

    manager = self.tokenizer_manager
    watchdog = manager._subprocess_watchdog
    cause = "a process of its own asked for it"
    if watchdog is not None:
        cause = cause_of(watchdog._processes, watchdog._names)
        watchdog.stop()
    manager.dump_requests_before_crash()
    kill_process_tree(os.getpid(), include_parent=False)
    print(f"hive: the server ends with status {CRASHED}: {cause}", file=sys.stderr, flush=True)
    # Nothing of what runs here may keep it: threads of uvicorn and of SGLang wait for a scheduler that is gone.
    os._exit(CRASHED)


def cause_of(processes: Any, names: Any) -> str:
    """Which of the processes failed, and how."""
    for seconds in (0.0, LAST_WORDS_S):
        for process, name in zip(processes, names, strict=True):
            process.join(seconds)
            status = process.exitcode
            if status is None or status == 0:
                continue
            how = f"was killed by {_signal(-status)}" if status < 0 else f"ended with status {status}"
            return f"{name} (process {process.pid}) {how}"
    # A scheduler that fails ends with status 0.
    return "a scheduler or the detokenizer failed; what it said of that is above"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
