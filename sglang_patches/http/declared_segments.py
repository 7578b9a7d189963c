"""Segments that ordinary requests declare, in the HTTP process.

By spans of token ids in ``custom_params.hive_segments``, or by separators in the text.  What the scheduler is sent is
a :class:`~hive.server.kv_segments.request.KvRequest`.  Encodings in a context of the server's own (standalone,
neutral) are made here, by a request of their own before the one that needs them.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from hive.server.flags.server_args import HiveServerArgs
from hive.server.kv_segments.request import SEGMENTS_FIELD, Keep, KvRequest, spans_request
from hive.server.kv_segments.segment import digest
from hive.server.kv_segments.separator import SEPARATOR, split
from hive.server.request_tag import RequestError
from sglang_patches.http.kv_calls import Call, kv_call, tenant_of, write

Encoding = tuple[str, str, str, str, str]
"""Tenant, adapter, extra key, context and digest of what was encoded in a context of the server's own."""

MAX_KNOWN = 65536
"""Encodings that were made here and are remembered."""

separated_chat: ContextVar[bool] = ContextVar("separated_chat", default=False)
"""Whether the request that is being served is a chat with separators: it comes rendered, and tokenised with them."""


class DeclaredSegments:
    """See the module."""

    def __init__(self, tokenizer_manager: Any, args: HiveServerArgs) -> None:
        self._manager = tokenizer_manager
        self._corrector = args.corrector
        self._neutral_text = args.kv_neutral_prefix
        self._known: OrderedDict[Encoding, None] = OrderedDict()
        """The longest unused first."""

    async def prepare(self, obj: Any) -> Sequence[Encoding]:
        """Say in a request, before it is tokenised, what it asks of the store.

        Returns the encodings among it that are made here, for :meth:`answered`: the engine is free to write a request
        of several samples anew.

        Raises:
            RequestError: where it cannot be had.
        """
        if (call := kv_call.get()) is not None:
            write(obj, call)
            return ()
        params = obj.sampling_params
        if isinstance(params, list):
            return ()
        custom = (params or {}).get("custom_params") or {}
        spec = custom.get(SEGMENTS_FIELD)
        separated = self._split(obj)
        if spec is None and separated is None:
            return ()
        spec = dict(spec or {})
        if separated is not None:
            if spec.get("spans"):
                raise RequestError(
                    f"custom_params.{SEGMENTS_FIELD}.spans", f"must not be given where text has {SEPARATOR}"
                )
            spec["spans"] = [{"start": start, "end": end} for start, end in separated]
        if obj.input_ids is None and obj.text is not None:
            # Without separators and spans, there may be an output to be kept behind a prompt of known length.
            obj.input_ids, obj.text = self._encode(obj.text, True), None
        request = spans_request(
            spec, len(obj.input_ids), f"custom_params.{SEGMENTS_FIELD}", corrector=self._corrector
        )
        # Requests for embeddings have none.
        request = replace(request, extra_key=getattr(obj, "extra_key", None) or "")
        needed = await self._make(obj, request)
        write(obj, request)
        return needed

    def _split(self, obj: Any) -> list[tuple[int, int]] | None:
        """Take separators out of a prompt; where its segments are, None without separators."""
        text = obj.text
        if text is None and isinstance(obj.input_ids, list) and separated_chat.get():
            # Chats come rendered and tokenised.
            text = self._tokenizer().decode(obj.input_ids)
        if not isinstance(text, str) or SEPARATOR not in text:
            return None
        rendered = text is not obj.text
        obj.text = None
        obj.input_ids, spans = split(text, lambda part, first: self._encode(part, first and not rendered))
        return spans

    def _encode(self, text: str, beginning: bool) -> list[int]:
        return list(self._tokenizer().encode(text, add_special_tokens=beginning))

    def _tokenizer(self) -> Any:
        tokenizer = self._manager.tokenizer
        if tokenizer is None:
            raise RequestError("text", "needs a server with a tokenizer: send input_ids and spans")
        return tokenizer

    # Contexts of the server's own.

    async def _make(self, obj: Any, request: KvRequest) -> list[Encoding]:
        """Have encodings made that a request asks for in a context of the server's own, and name all of them."""
        needed = []
        wanted = {}
        for span in request.spans:
            if span.name != "producer":
                tokens = obj.input_ids[span.start : span.end]
                tenant, adapter = tenant_of(obj) or "", obj.lora_path or ""
                key = (tenant, adapter, request.extra_key, span.name, digest(tokens))
                if key not in self._known:
                    wanted[key] = self._make_one(span.name, tokens, obj, request.extra_key)
                self._remember(key)
                needed.append(key)
        try:
            await asyncio.gather(*wanted.values())
        except BaseException:
            for key in wanted:
                self._known.pop(key, None)
            raise
        return needed

    async def _make_one(self, context: str, tokens: Sequence[int], obj: Any, extra_key: str) -> None:
        before = self._encode(self._neutral_text, True) if context == "neutral" else []
        keep = Keep(len(before), len(before) + len(tokens), context)
        # It is looked up under the key of the request that needs it.
        asked = KvRequest(keeps=(keep,), choreographed=True, extra_key=extra_key)
        call = Call([*before, *tokens], asked, obj.lora_path)
        await call.answer(self._manager, tenant_of(obj))

    def _remember(self, key: Encoding) -> None:
        self._known[key] = None
        self._known.move_to_end(key)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)

    def answered(self, needed: Sequence[Encoding], meta_info: dict[str, Any]) -> None:
        """What was not stored any more when a request needed it is to be made again."""
        if meta_info["hive"].get("kv", {}).get("missing"):
            for key in needed:
                self._known.pop(key, None)
