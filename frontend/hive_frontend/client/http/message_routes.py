"""The routes of a Hive server that make and keep messages: `/hive/prefill` and `/hive/decode`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal
from urllib.parse import quote

from hive_frontend.client.body_fields import grammar_fields, sampling_fields
from hive_frontend.client.cached_message import CachedMessage, KvUse
from hive_frontend.client.contract import MessageCall, OnText
from hive_frontend.client.http.answers import as_dict, completion_of, prompt_usage
from hive_frontend.client.http.streamed import StreamedText
from hive_frontend.client.http.transport import Transport
from hive_frontend.client.json_text import Json
from hive_frontend.client.prices import Prices
from hive_frontend.client.reply import Reply
from hive_frontend.errors import ModelError
from hive_frontend.wire import HEADER_PREFIX, sample_seed

MessageKind = Literal["prefill", "decode"]

_TEXT = {"prefill": ("text", "tokens"), "decode": ("header", "header_tokens")}


class MessageRoutes:
    """Makes messages at the server behind `transport`; `replay` and `prices` are those of the client."""

    def __init__(self, transport: Transport, replay: str, prices: Prices | None) -> None:
        self._transport = transport
        self._replay = replay
        self._prices = prices

    async def make(
        self,
        kind: MessageKind,
        call: MessageCall,
        adapter: str | None,
        attempts: int,
        on_text: OnText | None,
    ) -> CachedMessage:
        """Make a message, with a LoRA adapter if one is named; `on_text` receives its text piece by piece."""
        request = call.request
        path, body = f"/hive/{kind}", _body(kind, call)
        headers = {f"{HEADER_PREFIX}agent": request.agent, f"{HEADER_PREFIX}session": request.session}
        if adapter is not None:
            body["lora_path"] = adapter
        if kind == "decode":
            if self._replay == "distinct":
                raise ModelError(
                    'decode draws with replacement, so it does not support replay="distinct": use an HttpClient '
                    "without it"
                )
            if self._replay == "off":
                headers[f"{HEADER_PREFIX}replay"] = "off"
            body["sampling_params"] = {
                **sampling_fields(request.sampling),
                **grammar_fields(request.sampling),
                "max_new_tokens": request.sampling.max_tokens,
                # These routes have no sample number, so the server cannot derive the seed.
                "sampling_seed": sample_seed(request.seed, request.sample),
            }
        if on_text is None:
            answer = await self._transport.send(
                "POST", path, body, attempts=attempts, headers=headers, missing_ok=True
            )
        else:
            text = StreamedText(on_text, request.sampling.stop)
            answer = await self._stream(path, body, attempts, headers, text)
        if answer is None:
            raise ModelError(
                f"{self._transport.url} does not keep messages; start a server that does with python -m "
                "hive.launch_server --hive-kv-segments, or use TextMessages, which sends texts instead"
            )
        return _read(kind, call, answer, self._prices)

    async def _stream(
        self, path: str, body: Json, attempts: int, headers: Mapping[str, str], text: StreamedText
    ) -> Json | None:
        """Return the last event of a stream, which is the whole answer; None if the server does not have the route."""
        last: Json = {}

        def on_event(event: Json) -> None:
            nonlocal last
            last = event
            text.grow(event["text"])

        if not await self._transport.events(
            path, {**body, "stream": True}, on_event, attempts=attempts, headers=headers, missing_ok=True
        ):
            return None
        if "id" not in last:
            raise ModelError(
                f"POST {self._transport.url}{path}: the stream ended before the answer was complete"
            )
        text.finish(None)
        return last


def message_path(message: CachedMessage) -> str:
    """Return the route of one message."""
    return f"/hive/messages/{quote(message.id, safe='')}"


def _body(kind: MessageKind, call: MessageCall) -> Json:
    """Return the body of a call without sampling settings. Values left to the server are omitted."""
    in_text, in_tokens = _TEXT[kind]
    body: Json = {in_text: call.request.prompt} if call.tokens is None else {in_tokens: list(call.tokens)}
    body["parents"] = [parent.id for parent in call.parents]
    if call.offsets:
        body["offsets"] = list(call.offsets)
    if call.new_offset is not None:
        body["new_offset"] = call.new_offset
    if call.corrector is not None:
        body["corrector"] = call.corrector
    return body


def _read(kind: MessageKind, call: MessageCall, answer: Json, prices: Prices | None) -> CachedMessage:
    """Return the handle of the message in an answer; `ModelError` if the answer is incomplete."""
    given = call.request.prompt or ""
    try:
        id, tokens, offset = answer["id"], answer["tokens"], answer["offset"]
        text = given if kind == "prefill" else _reply(answer, prices)
    except KeyError as missing:
        raise ModelError(
            f"the server's answer is not a message, because {missing} is missing: {json.dumps(answer)[:200]}"
        ) from None
    kv = answer.get("kv") or {}
    return CachedMessage(
        id=id,
        session=call.request.session,
        text=text,
        tokens=tokens,
        offset=offset,
        header=given if kind == "decode" else "",
        kv=KvUse(**{name: kv.get(name, 0) for name in KvUse._fields}),
        output_ids=tuple(answer.get("output_ids") or ()),
        from_tokens=call.tokens is not None,
    )


def _reply(answer: Json, prices: Prices | None) -> Reply:
    meta = as_dict(answer.get("meta_info"))
    done = completion_of(
        answer["text"] or "",  # None from a server without a tokenizer.
        meta,
        len(answer.get("output_ids") or ()),
        answer.get("finish_reason"),
        prompt_usage(meta.get("prompt_tokens"), meta.get("cached_tokens")),
    )
    return (done if prices is None else prices.charge(done)).reply
