"""Requests that Hive itself sends to the engine, and their requests to the segment store."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from hive.server.kv_segments.request import KV_FIELD, SEGMENTS_FIELD, KvRequest
from hive.server.request_tag import header_tag, tag_in

kv_call: ContextVar[KvRequest | None] = ContextVar("kv_call", default=None)
"""The segment-store request of a call by Hive itself; such a call declares no segments."""


@dataclass(frozen=True)
class Call:
    """One request by Hive to the engine."""

    input_ids: Sequence[int]
    kv: KvRequest
    lora_path: str | None = None
    sampling_params: dict[str, Any] = field(default_factory=lambda: {"max_new_tokens": 1, "temperature": 0})
    stream: bool = False

    async def outputs(
        self, tokenizer_manager: Any, tenant: str | None, request: Any = None
    ) -> AsyncGenerator[dict[str, Any]]:
        """Yield the engine's outputs: one, or with ``stream`` one per piece.

        Args:
            tokenizer_manager: of the server.
            tenant: the request's tenant.
            request: the client's request; if the client disconnects, this request is aborted.
        """
        from sglang.srt.managers.io_struct import GenerateReqInput

        obj = GenerateReqInput(
            input_ids=list(self.input_ids),
            sampling_params=dict(self.sampling_params),
            lora_path=self.lora_path,
            stream=self.stream,
        )
        async with aclosing(tokenizer_manager.generate_request(obj, request)) as outputs:
            # The hook on the engine's method reads both variables when it starts; no other code may see them.
            kv_token, tag_token = (
                kv_call.set(self.kv),
                header_tag.set(replace(header_tag.get(), tenant=tenant)),
            )
            try:
                first = await anext(outputs)
            finally:
                kv_call.reset(kv_token)
                header_tag.reset(tag_token)
            yield first
            async for output in outputs:
                yield output

    async def output(self, tokenizer_manager: Any, tenant: str | None, request: Any = None) -> dict[str, Any]:
        """Return the engine's last output."""
        async with aclosing(self.outputs(tokenizer_manager, tenant, request)) as outputs:
            return [output async for output in outputs][-1]


def write(obj: Any, kv: KvRequest) -> None:
    """Write a segment-store request into a request to the engine."""
    params = obj.sampling_params or {}
    custom = {
        key: value for key, value in (params.get("custom_params") or {}).items() if key != SEGMENTS_FIELD
    }
    obj.sampling_params = {**params, "custom_params": {**custom, KV_FIELD: kv.to_wire()}}


def tenant_of(obj: Any) -> str | None:
    """Return the request's tenant; the tag from the headers is already in its parameters."""
    tenant: str | None = tag_in((obj.sampling_params or {}).get("custom_params")).get("tenant")
    return tenant
