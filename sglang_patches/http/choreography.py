"""Prompt Choreography over HTTP: ``/hive/prefill``, ``/hive/decode``, ``/hive/messages``.

Each call becomes a request whose prompt is all tokens of its parents, followed by its own.  The scheduler places the
parents' KV, and the model computes only the call's own tokens.  :mod:`hive.server.kv_segments.messages` defines the
semantics of the calls.
"""

from __future__ import annotations

import asyncio
import secrets
from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

import orjson
from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import StreamingResponse

from hive.server.kv_segments.messages import Layout, Message, MessageRegistry
from hive.server.kv_segments.request import Keep
from hive.server.request_tag import RequestError, header_tag, shown, within_call
from sglang_patches.http.control import controller
from sglang_patches.http.kv_calls import Call
from sglang_patches.http.request_middleware import PARSED

DEFAULT_NEW_TOKENS = 128
"""SGLang's default."""


@dataclass(frozen=True)
class _Planned:
    """A validated call."""

    id: str
    own: list[int]
    layout: Layout
    call: Call
    max_new_tokens: int
    """Maximum number of tokens to generate for its message; 0 for a prefill."""


class Choreography:
    """The messages of a server, and the calls that create them."""

    def __init__(self, tokenizer_manager: Any) -> None:
        self._manager = tokenizer_manager
        self._control = controller(tokenizer_manager)
        self.messages = MessageRegistry(tokenizer_manager.model_config.context_len)

    async def run(self, body: Mapping[str, Any], request: Request, *, decodes: bool) -> dict[str, Any]:
        """Run the calls of a body that the request middleware has checked.

        Raises:
            RequestError: if a call does not fit the existing messages.
        """
        planned = _in_one_batch(self._plan_all(body, decodes))
        if "calls" not in body:
            return await self._make(planned[0], request)
        try:
            # If one call fails, the others must not keep running.
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._make(call, request)) for call in planned]
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return {"results": [task.result() for task in tasks]}

    def stream(self, body: Mapping[str, Any], request: Request) -> AsyncIterator[bytes]:
        """Stream decodes as server-sent events; in a list of calls, each event has the index of its call.

        Raises:
            RequestError: if a call does not fit the existing messages.
        """
        planned = [
            replace(call, call=replace(call.call, stream=True))
            for call in _in_one_batch(self._plan_all(body, True))
        ]
        if "calls" in body:
            return _events(_merged([self._pieces(call, request) for call in planned]))
        return _events(self._pieces(planned[0], request))

    async def delete(self, tenant: str | None, id: str) -> Message | None:
        """Delete a message and its KV; return None if it is unknown."""
        message = self.messages.remove(tenant, id)
        if message is not None:
            await self._drop(tenant, [message])
        return message

    async def end_session(self, tenant: str | None, session: str) -> None:
        """Delete the messages of a session and their KV."""
        if made := self.messages.end_session(tenant, session):
            await self._drop(tenant, made)

    async def _drop(self, tenant: str | None, messages: Sequence[Message]) -> None:
        await self._control("drop_messages", tenant=tenant, messages=[message.id for message in messages])

    # Planning: all calls are validated before the first one runs.

    def _plan_all(self, body: Mapping[str, Any], decodes: bool) -> list[_Planned]:
        tenant = header_tag.get().tenant
        if "calls" not in body:
            return [self._plan(body, tenant, decodes, ())]
        calls = body["calls"]
        new_ids = [call["id"] for call in calls if isinstance(call.get("id"), str)]
        planned: list[_Planned] = []
        for at, call in enumerate(calls):
            with within_call(at):
                if new_ids.count(call.get("id")) > 1:
                    raise RequestError("id", f"must not be the id of another call, got {shown(call['id'])}")
                planned.append(self._plan(call, tenant, decodes, new_ids))
        return planned

    def _plan(
        self, call: Mapping[str, Any], tenant: str | None, decodes: bool, siblings: Sequence[str]
    ) -> _Planned:
        adapter = call.get("lora_path")
        # The cache contains every adapter that was ever loaded. SGLang reloads an unloaded one on request.
        if adapter is not None and adapter not in self._manager.lora_ref_cache:
            raise RequestError(
                "lora_path", f"must be the name of an adapter that was loaded, got {shown(adapter)}"
            )
        id = self.messages.new_id(tenant, call.get("id"), "id")
        names = ("header", "header_tokens") if decodes else ("text", "tokens")
        beginning = not call.get("parents") and not call.get("new_offset")
        own = self._tokens(call, *names, beginning)
        params = dict(call.get("sampling_params") or {})
        max_new_tokens = (params.get("max_new_tokens") or DEFAULT_NEW_TOKENS) if decodes else 0
        # The last token is sampled but never fed to the model, so it is not part of the message.
        params["max_new_tokens"] = max_new_tokens + 1
        layout = self.messages.layout(tenant, call, len(own), max_new_tokens + 1, siblings=[*siblings, id])
        corrector = call.get("corrector") or "none"
        context = layout.context
        keep = Keep(context, None if decodes else context + len(own), f"message:{id}")
        request = replace(layout.request(corrector), keeps=(keep,))
        if not decodes:
            params["temperature"] = 0
        return _Planned(
            id, own, layout, Call(layout.input_ids(own), request, adapter, params), max_new_tokens
        )

    def _tokens(self, call: Mapping[str, Any], text: str, tokens: str, beginning: bool) -> list[int]:
        if call.get(tokens) is not None:
            return list(call[tokens])
        tokenizer = self._manager.tokenizer
        if tokenizer is None:
            raise RequestError(text, f"needs a server with a tokenizer: send {tokens}")
        ids = list(tokenizer.encode(call[text], add_special_tokens=beginning))
        if not ids:
            raise RequestError(text, "must have at least one token")
        return ids

    # Running.

    async def _make(self, planned: _Planned, request: Request) -> dict[str, Any]:
        return [piece async for piece in self._pieces(planned, request)][-1]

    async def _pieces(self, planned: _Planned, request: Request) -> AsyncIterator[dict[str, Any]]:
        """Yield the outputs of a call. With the last one, other calls can use its message."""
        tag = header_tag.get()
        with self.messages.making(tag.tenant, planned.id, tag.session) as is_wanted:
            async with aclosing(self._results(planned, request, is_wanted)) as outputs:
                async for output in outputs:
                    yield output

    async def _results(
        self, planned: _Planned, request: Request, is_wanted: Callable[[], bool]
    ) -> AsyncGenerator[dict[str, Any]]:
        tag = header_tag.get()
        async for output in _with_http_errors(planned.call.outputs(self._manager, tag.tenant, request)):
            reason = output["meta_info"].get("finish_reason")
            if reason is None:
                yield {
                    **output,
                    **self._piece(
                        planned, output["output_ids"][: planned.max_new_tokens], output.get("text")
                    ),
                }
                continue
            if reason["type"] == "abort":
                raise HTTPException(int(reason.get("status_code") or 500), reason.get("message") or "aborted")
            generated = output["output_ids"][:-1] if planned.max_new_tokens else []
            tokens = array("q", [*planned.own, *generated])
            message = Message(planned.id, tag.tenant, tag.session, tokens, planned.layout.new_offset)
            if is_wanted():
                self.messages.add(message)
            else:
                # Its session ended in the meantime.
                await self._drop(tag.tenant, [message])
            yield self._result(planned, message, generated, output)

    def _result(
        self, planned: _Planned, message: Message, generated: list[int], output: dict[str, Any]
    ) -> dict[str, Any]:
        meta = output["meta_info"]
        result = {
            "id": message.id,
            "tokens": len(message.tokens),
            "offset": message.offset,
            "end": message.end,
            "kv": meta["hive"].get("kv"),
            "meta_info": meta,
        }
        if not planned.max_new_tokens:
            return result
        reason = dict(meta["finish_reason"])
        text = output.get("text")
        if reason["type"] == "length":
            reason["length"] = len(generated)
            if self._manager.tokenizer is not None:
                skip = planned.call.sampling_params.get("skip_special_tokens", True)
                text = self._manager.tokenizer.decode(generated, skip_special_tokens=skip)
        return {**result, "text": text, "output_ids": generated, "finish_reason": reason}

    @staticmethod
    def _piece(planned: _Planned, generated: list[int], text: Any) -> dict[str, Any]:
        return {"id": planned.id, "output_ids": generated, "text": text}


async def _with_http_errors(outputs: AsyncGenerator[dict[str, Any]]) -> AsyncGenerator[dict[str, Any]]:
    """Yield the engine's outputs. The engine raises ValueError for rejected requests and disconnected clients;
    convert it to an HTTP error.
    """
    async with aclosing(outputs):
        try:
            async for output in outputs:
                yield output
        except RequestError:
            raise
        except ValueError as error:
            raise HTTPException(getattr(error, "status_code", 400), str(error)) from None


def _in_one_batch(planned: list[_Planned]) -> list[_Planned]:
    """Make the calls of one list run as one batch."""
    group, calls = secrets.token_hex(8), len(planned)
    return [
        replace(one, call=replace(one.call, kv=replace(one.call.kv, group=group, calls=calls)))
        for one in planned
    ]


async def _merged(calls: Sequence[AsyncIterator[dict[str, Any]]]) -> AsyncIterator[dict[str, Any]]:
    """Merge the pieces of several calls in order of arrival, each with the index of its call."""
    pieces: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

    async def follow(index: int, call: AsyncIterator[dict[str, Any]]) -> None:
        async for piece in call:
            pieces.put_nowait({**piece, "index": index})

    async def follow_all() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for index, call in enumerate(calls):
                    group.create_task(follow(index, call))
        finally:
            pieces.put_nowait(None)

    following = asyncio.create_task(follow_all())
    try:
        while (piece := await pieces.get()) is not None:
            yield piece
        await following
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    finally:
        following.cancel()


async def _events(pieces: AsyncIterator[dict[str, Any]]) -> AsyncIterator[bytes]:
    """Format pieces as server-sent events; an error after the response has begun is an event, too."""
    try:
        async for piece in pieces:
            yield b"data: " + orjson.dumps(piece) + b"\n\n"
    except HTTPException as error:
        failure = {"error": {"message": error.detail, "code": error.status_code}}
        yield b"data: " + orjson.dumps(failure) + b"\n\n"
    yield b"data: [DONE]\n\n"


def router(choreography: Choreography | None) -> APIRouter:
    """Return the routes; without a segment store, the request middleware rejects their bodies."""
    routes = APIRouter(prefix="/hive")

    @routes.post("/prefill")
    async def prefill(request: Request) -> Response:
        assert choreography is not None
        return _json(await choreography.run(request.scope[PARSED], request, decodes=False))

    @routes.post("/decode")
    async def decode(request: Request) -> Response:
        assert choreography is not None
        body = request.scope[PARSED]
        if body.get("stream"):
            return StreamingResponse(choreography.stream(body, request), media_type="text/event-stream")
        return _json(await choreography.run(body, request, decodes=True))

    @routes.delete("/messages/{id:path}")
    async def delete(id: str) -> dict[str, Any]:
        tenant = header_tag.get().tenant
        message = await choreography.delete(tenant, id) if choreography is not None else None
        if message is None:
            raise HTTPException(
                404, f"message {id!r} is unknown: it was never created, or it has been deleted"
            )
        return {"id": id, "tokens": len(message.tokens)}

    return routes


def _json(content: Any) -> Response:
    return Response(orjson.dumps(content), media_type="application/json")
