"""Requests that Hive itself sends to the engine, and what they ask of the segment store."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from hive.server.kv_segments.request import KV_FIELD, SEGMENTS_FIELD, KvRequest
from hive.server.request_tag import header_tag, tag_in

kv_call: ContextVar[KvRequest | None] = ContextVar("kv_call", default=None)
"""What a request of Hive's own asks of the store; it declares nothing itself."""


@dataclass(frozen=True)
class Call:
    """One request."""

    input_ids: Sequence[int]
    kv: KvRequest
    lora_path: str | None = None
    sampling_params: dict[str, Any] = field(default_factory=lambda: {"max_new_tokens": 1, "temperature": 0})
    stream: bool = False

    async def answers(
        self, tokenizer_manager: Any, tenant: str | None, request: Any = None
    ) -> AsyncGenerator[dict[str, Any]]:
        """The engine's answers: one, or with ``stream`` one for each piece.

        Args:
            tokenizer_manager: of the server.
            tenant: whose request it is.
            request: of the client, whose going away ends this one.
        """
        from sglang.srt.managers.io_struct import GenerateReqInput

        obj = GenerateReqInput(
            input_ids=list(self.input_ids),
            sampling_params=dict(self.sampling_params),
            lora_path=self.lora_path,
            stream=self.stream,
        )
        async with aclosing(tokenizer_manager.generate_request(obj, request)) as answers:
            # The hook on the engine's own method reads both as it begins; nobody else is to see them.
            asked, tagged = kv_call.set(self.kv), header_tag.set(replace(header_tag.get(), tenant=tenant))
            try:
                first = await anext(answers)
            finally:
                kv_call.reset(asked)
                header_tag.reset(tagged)
            yield first
            async for answer in answers:
                yield answer

    async def answer(self, tokenizer_manager: Any, tenant: str | None, request: Any = None) -> dict[str, Any]:
        """The engine's last answer."""
        async with aclosing(self.answers(tokenizer_manager, tenant, request)) as answers:
            return [answer async for answer in answers][-1]


def write(obj: Any, kv: KvRequest) -> None:
    """Say in a request of the engine what it asks of the store."""
    params = obj.sampling_params or {}
    custom = {
        key: value for key, value in (params.get("custom_params") or {}).items() if key != SEGMENTS_FIELD
    }
    obj.sampling_params = {**params, "custom_params": {**custom, KV_FIELD: kv.to_wire()}}


def tenant_of(obj: Any) -> str | None:
    """Whose request it is; the tag of the headers has been written into its parameters."""
    tenant: str | None = tag_in((obj.sampling_params or {}).get("custom_params")).get("tenant")
    return tenant
