"""``POST /hive/generate``: one or more prompts, each with many samples of its continuation, in one request.

Each prompt is rendered and tokenized once, and all samples go to the scheduler in one message.  Each sample is
returned as it finishes.  Every sample has its own seed, tag and id.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response
from hive_frontend.wire import TAG_KEY

from hive.server.access import Access
from hive.server.request_checks.samples import PROMPTS, calls_of
from hive.server.request_tag import RequestError, header_tag, shown, tag_in, within_call
from sglang_patches.http.arrival import arrived
from sglang_patches.http.chat_template import render
from sglang_patches.http.meta_info import annotate
from sglang_patches.http.request_middleware import PARSED, error_body

CHAT_ENDPOINT_ONLY = "chat_endpoint_only"
"""Error code for a dialogue whose output the chat endpoint must post-process."""


def router(tokenizer_manager: Any, access: Access) -> APIRouter:
    """Return the routes for a running tokenizer manager."""
    routes = APIRouter(prefix="/hive")

    @routes.post("/generate")
    async def generate(request: Request) -> Response:
        body = request.scope[PARSED]
        calls, prompts = [], []
        listed = "calls" in body
        for at, call in enumerate(calls_of(body)):
            if call.get("messages") is not None:
                with within_call(at, listed=listed):
                    rendered = render(request.app.state.openai_serving_chat, call["messages"], _prefix(call))
                defaults = rendered["sampling_params"]
                if defaults is None:
                    rule = (
                        "must be sent to /v1/chat/completions, which post-processes the output of this model"
                    )
                    refusal = error_body(RequestError("messages", rule), CHAT_ENDPOINT_ONLY)
                    return Response(refusal, 409, media_type="application/json")
                prompts.append({"call": at, "kept": rendered["kept"], "ids": rendered["ids"]})
                ids = [*_prefix(call)[: rendered["kept"]], *rendered["ids"]]
                params = with_defaults(call.get("sampling_params") or {}, defaults)
                call = {**call, "input_ids": ids, "sampling_params": params}
            calls.append(call)
            # Other requests must not wait for the whole list.
            await asyncio.sleep(0)
        samples = Samples(tokenizer_manager, calls, request, listed=listed)
        try:
            await samples.begin()
        except BaseException:
            samples.discard()
            raise
        return _JsonLinesResponse(samples, prompts)

    @routes.delete("/requests/{rid:path}")
    async def abort(rid: str, request: Request) -> dict[str, Any]:
        state = tokenizer_manager.rid_to_state.get(rid)
        tenant = header_tag.get().tenant
        all_tenants = tenant is None and access.is_operator(request.headers.raw)
        known = state is not None and (all_tenants or _tenant_of(state.obj) == tenant)
        if known:
            tokenizer_manager.abort_request(rid)
        return {"rid": rid, "known": known}

    return routes


def _prefix(call: Mapping[str, Any]) -> Sequence[int]:
    return call.get("prefix_ids") or []


def with_defaults(params: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return sampling parameters, completed with the chat endpoint's defaults; stop strings are concatenated."""
    joined = {**defaults, **{name: value for name, value in params.items() if value is not None}}
    given = params.get("stop") or []
    if stops := [*defaults.get("stop", ()), *([given] if isinstance(given, str) else given)]:
        joined["stop"] = stops
    return joined


def _tenant_of(obj: Any) -> str | None:
    params = obj.sampling_params
    return tag_in(params.get("custom_params")).get("tenant") if isinstance(params, dict) else None


def _aborted(state: Any) -> bool:
    """Whether a sample was aborted before it was sent; only some releases of SGLang record this."""
    return getattr(state, "abort_requested", False) and not state.dispatched


@contextmanager
def _rejected(field: str) -> Iterator[None]:
    """Report a value that only the engine rejects: a prompt or an output that is too long, an adapter that was unloaded
    meanwhile.
    """
    try:
        yield
    except RequestError:
        raise
    except ValueError as error:
        raise RequestError(field, f"cannot be served: {error}") from None


class _SampleEvent:
    """Replaces the event of one sample's state: records which sample has a new output."""

    __slots__ = ("_index", "_samples")

    def __init__(self, samples: Samples, index: int) -> None:
        self._samples = samples
        self._index = index

    def set(self) -> None:
        self._samples.notify(self._index)


class _Call:
    """A prompt and its samples.

    Args:
        body: the checked call; ``input_ids`` are the prompt if messages were rendered.
    """

    def __init__(self, body: Mapping[str, Any]) -> None:
        from sglang.srt.managers.io_struct import GenerateReqInput

        self.samples: list[Mapping[str, Any]] = body["samples"]
        self.prompt = next(name for name in PROMPTS if body.get(name) is not None)
        shared = body.get("sampling_params") or {}
        custom = shared.get("custom_params") or {}
        tag = custom.get(TAG_KEY) or {}
        self._own = [arrived({TAG_KEY: {**tag, **(sample.get(TAG_KEY) or {})}}) for sample in self.samples]
        self.tags = [tag_in(own) for own in self._own]
        self.obj = GenerateReqInput(
            text=body.get("text"),
            input_ids=body.get("input_ids"),
            # For code that inspects the whole request: either all samples share a tenant, or none has one.
            sampling_params={**shared, "custom_params": {**custom, **self._own[0]}},
            lora_path=body.get("lora_path"),
            stream=bool(body.get("stream")),
        )
        self.needed: Any = ()
        """Encodings that the prompt needs, in the server's own contexts."""
        self.states: list[Any] = []
        """Engine states of all samples."""

    def each(self) -> Iterator[Any]:
        """Yield the engine's request for each sample."""
        obj = self.obj
        for sample, own in zip(self.samples, self._own, strict=True):
            one = copy.copy(obj)
            one.rid = sample.get("rid") or uuid.uuid4().hex
            custom = {**obj.sampling_params["custom_params"], **own}
            one.sampling_params = {**obj.sampling_params, "custom_params": custom}
            if sample.get("sampling_seed") is not None:
                one.sampling_params["sampling_seed"] = sample["sampling_seed"]
            yield one


class Samples:
    """The samples of one request, in the engine. They are numbered across its calls.

    Args:
        manager: SGLang's tokenizer manager.
        calls: the checked calls; see :class:`_Call`.
        request: the client's request, for logs.
        listed: whether the body has a list of calls.
    """

    def __init__(
        self, manager: Any, calls: Sequence[Mapping[str, Any]], request: Request, *, listed: bool
    ) -> None:
        self._manager = manager
        self._listed = listed
        self._request = request
        self._calls = [_Call(call) for call in calls]
        self._call_of = [call for call in self._calls for _ in call.samples]
        self._tags = [tag for call in self._calls for tag in call.tags]
        self._states: dict[int, Any] = {}
        """Engine states of unfinished samples, by index."""
        self._updated: dict[int, None] = {}
        self._wakeup = asyncio.Event()

    # Into the engine.

    async def begin(self) -> None:
        """Send all samples to the scheduler.

        Raises:
            RequestError: if one of the calls cannot be served; then none is.
        """
        manager = self._manager
        manager.auto_create_handle_loop()
        for at, call in enumerate(self._calls):
            with within_call(at, listed=self._listed):
                await self._prepare(call)
        async with manager.is_pause_cond:
            await manager.is_pause_cond.wait_for(lambda: not manager.is_pause)
        async with manager.model_update_lock.reader_lock:
            tokenized = []
            for at, call in enumerate(self._calls):
                with within_call(at, listed=self._listed), _rejected(call.prompt):
                    tokenized.append(await manager._tokenize_one_request(call.states[0].obj))
            with _rejected("lora_path"):
                await self._acquire_adapters()
            await self._send(tokenized)

    async def _prepare(self, call: _Call) -> None:
        """Check a call and register its samples."""
        manager, obj = self._manager, call.obj
        if manager.hive_segments is not None:
            call.needed = await manager.hive_segments.prepare(obj)
        path = obj.lora_path
        # The cache contains every adapter that was ever loaded. SGLang reloads an unloaded one on request.
        if path is not None and path not in manager.lora_ref_cache:
            raise RequestError(
                "lora_path", f"must be the name of an adapter that was loaded, got {shown(path)}"
            )
        with _rejected(call.prompt):
            obj.normalize_batch_and_arguments()
            manager._set_default_priority(obj)
            for one in call.each():
                manager._init_req_state(one, self._request)
                state = manager.rid_to_state[one.rid]
                state.event = _SampleEvent(self, len(self._states))
                self._states[len(self._states)] = state
                call.states.append(state)
                manager.request_logger.log_received_request(one, manager.tokenizer, self._request)

    async def _acquire_adapters(self) -> None:
        """Acquire each sample's adapter, or none; each sample releases its adapter when it ends."""
        states = [state for state in self._states.values() if state.obj.lora_path is not None]
        if not states:
            return
        resolved = copy.copy(states[0].obj)
        resolved.lora_path = [state.obj.lora_path for state in states]
        await self._manager._validate_and_resolve_lora(resolved)
        for state, lora_id in zip(states, resolved.lora_id, strict=True):
            state.obj.lora_id = lora_id

    async def _send(self, tokenized: Sequence[Any]) -> None:
        """Send all samples in one message; ``tokenized`` has the first one of each call."""
        batch = []
        for call, first in zip(self._calls, tokenized, strict=True):
            for state in call.states:
                if _aborted(state):
                    continue
                one, obj = copy.copy(first), state.obj
                one.rid, one.lora_id, one.time_stats = obj.rid, obj.lora_id, state.time_stats
                one.sampling_params = copy.copy(first.sampling_params)
                one.sampling_params.sampling_seed = obj.sampling_params.get("sampling_seed")
                one.sampling_params.custom_params = obj.sampling_params["custom_params"]
                if state is not call.states[0]:
                    state.time_stats.set_tokenize_finish_time()
                batch.append(one)
        if batch:
            sent = self._manager._send_batch_request(batch)
            # In later releases of SGLang, this may wait for media.
            if inspect.isawaitable(sent):
                await sent
        for index in [index for index, state in self._states.items() if _aborted(state)]:
            await self._end_unsent(index)

    async def _end_unsent(self, index: int) -> None:
        """End a sample that was aborted before it was sent: the scheduler will not report it."""
        from sglang.srt.managers.io_struct import AbortReq

        state = self._states[index]
        if state.obj.lora_id is not None:
            await self._manager.lora_registry.release(state.obj.lora_id)
        self._manager._handle_abort_req(AbortReq(rid=state.obj.rid))

    def discard(self) -> None:
        """Discard samples that were not sent, of a rejected request or a disconnected client."""
        for state in self._states.values():
            if not state.dispatched:
                self._manager.rid_to_state.pop(state.obj.rid, None)
        self.abort()

    # Out of the engine.

    def notify(self, index: int) -> None:
        """Record that a sample has a new output."""
        self._updated[index] = None
        self._wakeup.set()

    def wake(self) -> None:
        """Make :meth:`updates` return, even without a new output."""
        self._wakeup.set()

    async def updates(self) -> list[dict[str, Any]]:
        """Wait for new outputs and return them; empty after :meth:`wake`."""
        await self._wakeup.wait()
        self._wakeup.clear()
        updated, self._updated = self._updated, {}
        return [output for index in updated if (output := await self._output(index)) is not None]

    @property
    def done(self) -> bool:
        """Whether all samples are finished."""
        return not self._states

    def abort(self) -> None:
        """Abort the unfinished samples."""
        for state in self._states.values():
            if not state.finished and state.dispatched:
                self._manager.abort_request(state.obj.rid)
        self._states.clear()

    async def _output(self, index: int) -> dict[str, Any] | None:
        state = self._states.get(index)
        if state is None or not state.out_list:
            return None
        out = state.out_list[-1]
        state.out_list = []
        meta = out["meta_info"]
        # In an incremental stream, a piece has only its own customized_info.
        meta.update(state.customized_info_accumulated)
        output = {"index": index, "output_ids": state.output_ids, "meta_info": meta}
        if "text" in out:
            output["text"] = state.get_text()
        if state.finished:
            del self._states[index]
            if failure := await self._finish(state, out):
                return {"index": index, "error": failure}
        if "completion_tokens" in meta:
            annotate(meta, self._tags[index])
            if needed := self._call_of[index].needed:
                self._manager.hive_segments.forget_missing(needed, meta)
        return output

    async def _finish(self, state: Any, out: dict[str, Any]) -> dict[str, Any] | None:
        """Do what SGLang does when a request ends; return the error if it failed."""
        manager, meta = self._manager, out["meta_info"]
        if not state.time_stats.response_sent_to_client_time:
            state.time_stats.set_response_sent_to_client_time()
            meta["response_sent_to_client_ts"] = state.time_stats.get_response_sent_to_client_realtime()
        manager.request_logger.log_finished_request(state.obj, out, request=self._request)
        exporters = manager.request_metrics_exporter_manager
        if exporters.exporter_enabled():
            await exporters.write_record(state.obj, out)
        reason = meta.get("finish_reason")
        if not isinstance(reason, dict) or reason.get("type") != "abort":
            return None
        await manager._handle_abort_finish_reason(out, state, True)
        status = reason.get("status_code")
        if status is None:
            return None
        return {"status": int(status), "message": reason.get("message") or "aborted", "param": None}


class _JsonLinesResponse(Response):
    """A response with one JSON object per line and output; aborts the remaining samples when the client disconnects."""

    media_type = "application/x-ndjson"

    def __init__(self, samples: Samples, prompts: list[dict[str, Any]]) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._samples = samples
        self._prompts = prompts

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        samples = self._samples
        gone = asyncio.ensure_future(_disconnected(receive))
        gone.add_done_callback(lambda _: samples.wake())
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            lines = [{"prompt": prompt} for prompt in self._prompts]
            while not (samples.done or gone.done()):
                lines += await samples.updates()
                if lines:
                    await send(
                        {
                            "type": "http.response.body",
                            "body": _json_lines(lines),
                            "more_body": not samples.done,
                        }
                    )
                    lines = []
        finally:
            gone.cancel()
            samples.abort()


async def _disconnected(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _json_lines(lines: list[dict[str, Any]]) -> bytes:
    return b"".join(orjson.dumps(line, option=_OPTIONS) for line in lines)


_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
