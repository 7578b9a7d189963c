"""Hooks on ``TokenizerManager``, through which every endpoint's requests reach the scheduler.

The request middleware (:mod:`sglang_patches.http.request_middleware`) has checked requests of the main endpoints. All
other requests are checked here.  Each gets its whole tag and the time of its arrival, and every output gets
``meta_info.hive``, which says what Hive did for the request.
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
from hive.server.request_tag import RequestError, tag_in
from sglang_patches.http.arrival import arrived
from sglang_patches.http.meta_info import annotate
from sglang_patches.http.request_middleware import ROUTE


def around_generate_request(
    original: Callable[..., AsyncGenerator[Any, None]], self: Any, obj: Any, request: Any = None
) -> AsyncIterator[Any]:
    """Check and tag the request, and annotate every output: a dict, or a list of dicts for an unstreamed batch."""
    return _annotated(original, self, obj, request)


async def _annotated(
    original: Callable[..., AsyncGenerator[Any, None]], manager: Any, obj: Any, request: Any
) -> AsyncIterator[Any]:
    # Endpoints whose bodies the middleware does not check (responses, Anthropic's messages, ...) also arrive here.
    if isinstance(obj.input_ids, Mapping):
        # Ollama's chat endpoint passes the tokenizer's whole return value.
        obj.input_ids = obj.input_ids["input_ids"]
    if not _checked_by_middleware(request, obj.sampling_params):
        check_request_object(obj, manager.hive_limits)
    answers_person, end = manager.hive_chat_ends.observe(request)
    params = obj.sampling_params
    if isinstance(params, list):
        obj.sampling_params = [_arrived(item, answers_person) for item in params]
    else:
        obj.sampling_params = _arrived(params, answers_person)
    if getattr(obj, "session_params", None) is not None and any(
        "tenant" in _tag(obj, at) for at in range(_param_sets(obj))
    ):
        raise RequestError(
            "session_params", "must not be set by a tenant: SGLang's sessions are not separated by tenant"
        )
    segments = manager.hive_segments
    needed = await segments.prepare(obj) if segments is not None and hasattr(obj, "text") else ()
    async with aclosing(original(manager, obj, request)) as answers:
        async for answer in answers:
            for index, item in enumerate(answer if isinstance(answer, list) else [answer]):
                if isinstance(item, dict) and "completion_tokens" in item.get("meta_info", {}):
                    annotate(item["meta_info"], _tag(obj, item.get("index", index)))
                    if needed:
                        segments.forget_missing(needed, item["meta_info"])
                    if end is not None:
                        end.saw(obj, item)
            yield answer


def _checked_by_middleware(request: Any, params: Any) -> bool:
    """Whether a request has exactly the fields of the body that the request middleware checked.

    Other endpoints create fields of their own, and ``/generate`` can be configured to take some from headers.  The
    middleware's parser reads integers of more than 64 bits as floats, the endpoint's parser as integers; only custom
    parameters may be that large.
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
    """Number the samples of a request with ``n`` > 1: upstream gives all of them the same seed.

    They are sent one after the other and share one object of parameters, in which each sample leaves the number of
    the next. (Before them, upstream warms the radix cache with a copy of the request.)
    """
    shared = tokenized_obj.sampling_params
    tokenized_obj.sampling_params = copy.copy(shared)
    custom = dict(shared.custom_params or {})
    tag = dict(custom.get(TAG_KEY) or {})
    tag["sample"] = min(tag.get("sample", 0) + 1, MAX_SAMPLE)
    shared.custom_params = {**custom, TAG_KEY: tag}


def _arrived(params: dict[str, Any] | None, answers_person: bool) -> dict[str, Any]:
    """Return the sampling parameters of a request that arrives now."""
    params = params or {}
    custom = arrived(params.get("custom_params"), answers_person=answers_person)
    return {**params, "custom_params": custom}


def _param_sets(obj: Any) -> int:
    """Return the number of sets of sampling parameters of a request."""
    return len(obj.sampling_params) if isinstance(obj.sampling_params, list) else 1


def _tag(obj: Any, index: int) -> dict[str, Any]:
    """Return the tag of a request's ``index``-th output; a batch may have one tag per prompt."""
    params = getattr(obj, "sampling_params", None)
    if isinstance(params, list):
        params = params[index] if index < len(params) else None
    return tag_in((params or {}).get("custom_params"))


CRASHED = 1
"""The launcher's exit status after a crash."""


EXIT_WAIT_S = 1.0
"""Seconds to wait for a process that reported an error to exit, so that its status is known."""


def running_phase_sigquit_handler(self: Any, signum: Any = None, frame: Any = None) -> None:
    """Handle the failure of a child process: end all processes and report which one failed."""
    from sglang.srt.utils import kill_process_tree

    manager = self.tokenizer_manager
    watchdog = manager._subprocess_watchdog
    cause = "one of its processes requested it"
    if watchdog is not None:
        cause = cause_of(watchdog._processes, watchdog._names)
        watchdog.stop()
    manager.dump_requests_before_crash()
    kill_process_tree(os.getpid(), include_parent=False)
    print(f"hive: the server ends with status {CRASHED}: {cause}", file=sys.stderr, flush=True)
    # Exit at once: threads of uvicorn and SGLang would wait for a scheduler that is gone.
    os._exit(CRASHED)


def cause_of(processes: Any, names: Any) -> str:
    """Return which process failed, and how."""
    for seconds in (0.0, EXIT_WAIT_S):
        for process, name in zip(processes, names, strict=True):
            process.join(seconds)
            status = process.exitcode
            if status is None or status == 0:
                continue
            how = f"was killed by {_signal(-status)}" if status < 0 else f"ended with status {status}"
            return f"{name} (process {process.pid}) {how}"
    # A scheduler that fails exits with status 0.
    return "a scheduler or the detokenizer failed; see its error above"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
