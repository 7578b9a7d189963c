"""Segments that ordinary requests declare, in the HTTP process.

A request declares segments as spans of token ids in ``custom_params.hive_segments``, or with separators in its text.
The scheduler receives them as a :class:`~hive.server.kv_segments.request.KvRequest`.  For encodings in one of the
server's own contexts (standalone, neutral), this module first sends a separate request that computes them.
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
"""Tenant, adapter, extra key, context and digest of a segment encoded in one of the server's own contexts."""

MAX_KNOWN = 65536
"""Maximum number of computed encodings that are remembered."""

separated_chat: ContextVar[bool] = ContextVar("separated_chat", default=False)
"""Whether the current request is a chat with separators: its prompt is already rendered and tokenized, with
separators.
"""


class DeclaredSegments:
    """Prepares requests with declared segments; see the module."""

    def __init__(self, tokenizer_manager: Any, args: HiveServerArgs) -> None:
        self._manager = tokenizer_manager
        self._corrector = args.corrector
        self._neutral_text = args.kv_neutral_prefix
        self._known: OrderedDict[Encoding, None] = OrderedDict()
        """Least recently used first."""

    async def prepare(self, obj: Any) -> Sequence[Encoding]:
        """Write the request's segments into it, before it is tokenized.

        Returns the encodings in the server's own contexts that the request needs, for :meth:`forget_missing`; they
        are returned because the engine may rewrite a request of several samples.

        Raises:
            RequestError: if the segments are invalid or cannot be served.
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
            # Even without separators and spans, the request may keep its output, which needs a prompt of known
            # length.
            obj.input_ids, obj.text = self._encode(obj.text, True), None
        request = spans_request(
            spec, len(obj.input_ids), f"custom_params.{SEGMENTS_FIELD}", corrector=self._corrector
        )
        # Embedding requests have no extra key.
        request = replace(request, extra_key=getattr(obj, "extra_key", None) or "")
        needed = await self._make(obj, request)
        write(obj, request)
        return needed

    def _split(self, obj: Any) -> list[tuple[int, int]] | None:
        """Remove separators from a prompt; return the spans of its segments, or None without separators."""
        text = obj.text
        if text is None and isinstance(obj.input_ids, list) and separated_chat.get():
            # Chat prompts are already rendered and tokenized.
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

    # The server's own contexts.

    async def _make(self, obj: Any, request: KvRequest) -> list[Encoding]:
        """Compute the missing encodings that a request needs in the server's own contexts; return all that it needs."""
        needed = []
        missing = {}
        for span in request.spans:
            if span.name != "producer":
                tokens = obj.input_ids[span.start : span.end]
                tenant, adapter = tenant_of(obj) or "", obj.lora_path or ""
                key = (tenant, adapter, request.extra_key, span.name, digest(tokens))
                if key not in self._known:
                    missing[key] = self._make_one(span.name, tokens, obj, request.extra_key)
                self._remember(key)
                needed.append(key)
        try:
            await asyncio.gather(*missing.values())
        except BaseException:
            for key in missing:
                self._known.pop(key, None)
            raise
        return needed

    async def _make_one(self, context: str, tokens: Sequence[int], obj: Any, extra_key: str) -> None:
        before = self._encode(self._neutral_text, True) if context == "neutral" else []
        keep = Keep(len(before), len(before) + len(tokens), context)
        # The encoding is stored under the key of the request that needs it.
        kv_request = KvRequest(keeps=(keep,), choreographed=True, extra_key=extra_key)
        call = Call([*before, *tokens], kv_request, obj.lora_path)
        await call.output(self._manager, tenant_of(obj))

    def _remember(self, key: Encoding) -> None:
        self._known[key] = None
        self._known.move_to_end(key)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)

    def forget_missing(self, needed: Sequence[Encoding], meta_info: dict[str, Any]) -> None:
        """Forget encodings that were no longer stored when a request needed them, so that the next request recomputes
        them.
        """
        if meta_info["hive"].get("kv", {}).get("missing"):
            for key in needed:
                self._known.pop(key, None)
