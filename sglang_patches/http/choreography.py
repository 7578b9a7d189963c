"""Prompt Choreography over HTTP: ``/hive/prefill``, ``/hive/decode``, ``/hive/messages``.

A call becomes a request whose prompt is all its parents' tokens and its own; the scheduler places the parents' KV,
and only the call's own tokens are computed.  See :mod:`hive.server.kv_segments.messages` for what the calls mean.
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

from hive.server.kv_segments.messages import Layout, Message, MessageBook
from hive.server.kv_segments.request import Keep
from hive.server.request_checks.choreography import within
from hive.server.request_tag import RequestError, header_tag, shown
from sglang_patches.http.control import controller
from sglang_patches.http.kv_calls import Call
from sglang_patches.http.request_door import PARSED

DEFAULT_NEW_TOKENS = 128
"""As SGLang has it."""


@dataclass(frozen=True)
class _Planned:
    """A call that may be made."""

    id: str
    own: list[int]
    layout: Layout
    call: Call
    most: int
    """Tokens that it may generate for its message; 0 for a prefill."""


class Choreography:
    """The messages of a server, and the calls that make them."""

    def __init__(self, tokenizer_manager: Any) -> None:
        self._manager = tokenizer_manager
        self._control = controller(tokenizer_manager)
        self.book = MessageBook(tokenizer_manager.model_config.context_len)

    async def run(self, body: Mapping[str, Any], request: Request, *, decodes: bool) -> dict[str, Any]:
        """Make the calls of a body, which the door has checked.

        Raises:
            RequestError: where a call does not fit the messages that there are.
        """
        planned = _together(self._plan_all(body, decodes))
        if "calls" not in body:
            return await self._make(planned[0], request)
        try:
            # One that fails must not leave the others running for nobody.
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._make(call, request)) for call in planned]
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return {"results": [task.result() for task in tasks]}

    def stream(self, body: Mapping[str, Any], request: Request) -> AsyncIterator[bytes]:
        """The pieces of decodes as server-sent events; those of a list have the index of their call.

        Raises:
            RequestError: where a call does not fit the messages that there are.
        """
        planned = [
            replace(call, call=replace(call.call, stream=True))
            for call in _together(self._plan_all(body, True))
        ]
        if "calls" in body:
            return _events(_merged([self._pieces(call, request) for call in planned]))
        return _events(self._pieces(planned[0], request))

    async def delete(self, tenant: str | None, id: str) -> Message | None:
        """Forget a message, and its KV; None where it is unknown."""
        message = self.book.remove(tenant, id)
        if message is not None:
            await self._drop(tenant, [message])
        return message

    async def end_session(self, tenant: str | None, session: str) -> None:
        """Forget the messages of a session, and their KV."""
        if made := self.book.end_session(tenant, session):
            await self._drop(tenant, made)

    async def _drop(self, tenant: str | None, messages: Sequence[Message]) -> None:
        await self._control("drop_messages", tenant=tenant, messages=[message.id for message in messages])

    # Planning: everything that can be refused is, before any call is made.

    def _plan_all(self, body: Mapping[str, Any], decodes: bool) -> list[_Planned]:
        tenant = header_tag.get().tenant
        if "calls" not in body:
            return [self._plan(body, tenant, decodes, ())]
        calls = body["calls"]
        wanted = [call["id"] for call in calls if isinstance(call.get("id"), str)]
        found: list[_Planned] = []
        for at, call in enumerate(calls):
            try:
                if wanted.count(call.get("id")) > 1:
                    raise RequestError("id", f"must not be that of another call, got {shown(call['id'])}")
                found.append(self._plan(call, tenant, decodes, wanted))
            except RequestError as error:
                raise within(f"calls[{at}]", error) from None
        return found

    def _plan(
        self, call: Mapping[str, Any], tenant: str | None, decodes: bool, siblings: Sequence[str]
    ) -> _Planned:
        adapter = call.get("lora_path")
        # It has all that were ever loaded: what was unloaded since is loaded again by whoever asks for it.
        if adapter is not None and adapter not in self._manager.lora_ref_cache:
            raise RequestError(
                "lora_path", f"must be the name of an adapter that was loaded, got {shown(adapter)}"
            )
        id = self.book.new_id(tenant, call.get("id"), "id")
        names = ("header", "header_tokens") if decodes else ("text", "tokens")
        beginning = not call.get("parents") and not call.get("new_offset")
        own = self._tokens(call, *names, beginning)
        params = dict(call.get("sampling_params") or {})
        most = (params.get("max_new_tokens") or DEFAULT_NEW_TOKENS) if decodes else 0
        # The last token is sampled and never fed to the model: it is no part of the message.
        params["max_new_tokens"] = most + 1
        layout = self.book.layout(tenant, call, len(own), most + 1, siblings=[*siblings, id])
        corrector = call.get("corrector") or "none"
        context = layout.context
        keep = Keep(context, None if decodes else context + len(own), f"message:{id}")
        request = replace(layout.request(corrector), keeps=(keep,))
        if not decodes:
            params["temperature"] = 0
        return _Planned(id, own, layout, Call(layout.input_ids(own), request, adapter, params), most)

    def _tokens(self, call: Mapping[str, Any], text: str, tokens: str, beginning: bool) -> list[int]:
        if call.get(tokens) is not None:
            return list(call[tokens])
        tokenizer = self._manager.tokenizer
        if tokenizer is None:
            raise RequestError(text, f"needs a server with a tokenizer: send {tokens}")
        found = list(tokenizer.encode(call[text], add_special_tokens=beginning))
        if not found:
            raise RequestError(text, "must have at least one token")
        return found

    # Making.

    async def _make(self, planned: _Planned, request: Request) -> dict[str, Any]:
        return [piece async for piece in self._pieces(planned, request)][-1]

    async def _pieces(self, planned: _Planned, request: Request) -> AsyncIterator[dict[str, Any]]:
        """Answers to a call; with the last one its message is known to others."""
        tag = header_tag.get()
        with self.book.making(tag.tenant, planned.id, tag.session) as wanted:
            async with aclosing(self._answers(planned, request, wanted)) as answers:
                async for answer in answers:
                    yield answer

    async def _answers(
        self, planned: _Planned, request: Request, wanted: Callable[[], bool]
    ) -> AsyncGenerator[dict[str, Any]]:
        tag = header_tag.get()
        async for answer in _telling(planned.call.answers(self._manager, tag.tenant, request)):
            reason = answer["meta_info"].get("finish_reason")
            if reason is None:
                yield {
                    **answer,
                    **self._said(planned, answer["output_ids"][: planned.most], answer.get("text")),
                }
                continue
            if reason["type"] == "abort":
                raise HTTPException(int(reason.get("status_code") or 500), reason.get("message") or "aborted")
            generated = answer["output_ids"][:-1] if planned.most else []
            tokens = array("q", [*planned.own, *generated])
            message = Message(planned.id, tag.tenant, tag.session, tokens, planned.layout.new_offset)
            if wanted():
                self.book.add(message)
            else:
                # Its session ended, and it with it.
                await self._drop(tag.tenant, [message])
            yield self._result(planned, message, generated, answer)

    def _result(
        self, planned: _Planned, message: Message, generated: list[int], answer: dict[str, Any]
    ) -> dict[str, Any]:
        meta = answer["meta_info"]
        result = {
            "id": message.id,
            "tokens": len(message.tokens),
            "offset": message.offset,
            "end": message.end,
            "kv": meta["hive"].get("kv"),
            "meta_info": meta,
        }
        if not planned.most:
            return result
        reason = dict(meta["finish_reason"])
        text = answer.get("text")
        if reason["type"] == "length":
            reason["length"] = len(generated)
            if self._manager.tokenizer is not None:
                skip = planned.call.sampling_params.get("skip_special_tokens", True)
                text = self._manager.tokenizer.decode(generated, skip_special_tokens=skip)
        return {**result, "text": text, "output_ids": generated, "finish_reason": reason}

    @staticmethod
    def _said(planned: _Planned, generated: list[int], text: Any) -> dict[str, Any]:
        return {"id": planned.id, "output_ids": generated, "text": text}


async def _telling(answers: AsyncGenerator[dict[str, Any]]) -> AsyncGenerator[dict[str, Any]]:
    """The engine's answers; what it refuses, and that the client has gone, it says by a ValueError."""
    async with aclosing(answers):
        try:
            async for answer in answers:
                yield answer
        except RequestError:
            raise
        except ValueError as error:
            raise HTTPException(getattr(error, "status_code", 400), str(error)) from None


def _together(planned: list[_Planned]) -> list[_Planned]:
    """Calls of one list run as one batch."""
    group, calls = secrets.token_hex(8), len(planned)
    return [
        replace(one, call=replace(one.call, kv=replace(one.call.kv, group=group, calls=calls)))
        for one in planned
    ]


async def _merged(calls: Sequence[AsyncIterator[dict[str, Any]]]) -> AsyncIterator[dict[str, Any]]:
    """The pieces of several calls, each with the index of its call, as they come."""
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
    """As server-sent events; what fails on the way is one, too, for the answer has begun."""
    try:
        async for piece in pieces:
            yield b"data: " + orjson.dumps(piece) + b"\n\n"
    except HTTPException as error:
        failure = {"error": {"message": error.detail, "code": error.status_code}}
        yield b"data: " + orjson.dumps(failure) + b"\n\n"
    yield b"data: [DONE]\n\n"


def router(choreography: Choreography | None) -> APIRouter:
    """The routes; without a segment store the door refuses their bodies."""
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
            raise HTTPException(404, f"message {id!r} is not known: it was not made, or it has been deleted")
        return {"id": id, "tokens": len(message.tokens)}

    return routes


def _json(content: Any) -> Response:
    return Response(orjson.dumps(content), media_type="application/json")
