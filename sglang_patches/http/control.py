"""Sends Hive's control messages from the HTTP process to every scheduler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

CONTROL_PREFIX = "hive:"
"""Prefix of Hive's messages on SGLang's only control channel that carries JSON in both directions (``/dumper``)."""

Control = Callable[..., Awaitable[list[dict[str, Any]]]]
"""Sends an operation with its body as keywords, and returns the responses: one per data-parallel rank."""


def controller(tokenizer_manager: Any) -> Control:
    """Return the control channel of a running tokenizer manager."""

    async def control(operation: str, **body: Any) -> list[dict[str, Any]]:
        from sglang.srt.managers.io_struct import DumperControlReqInput

        message = DumperControlReqInput(method=CONTROL_PREFIX + operation, body=body)
        answers = await tokenizer_manager.dumper_control(message)
        return [part for answer in answers for part in answer.response]

    return control
