"""Hive's control messages, from the HTTP process to every scheduler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

CONTROL_PREFIX = "hive:"
"""Marks Hive's messages on the one control channel that carries JSON both ways (``/dumper``)."""

Control = Callable[..., Awaitable[list[dict[str, Any]]]]
"""Takes an operation and its body as keywords, and collects the answers: one per data-parallel rank."""


def controller(tokenizer_manager: Any) -> Control:
    """The channel of a running tokenizer manager."""

    async def control(operation: str, **body: Any) -> list[dict[str, Any]]:
        from sglang.srt.managers.io_struct import DumperControlReqInput

        message = DumperControlReqInput(method=CONTROL_PREFIX + operation, body=body)
        answers = await tokenizer_manager.dumper_control(message)
        return [part for answer in answers for part in answer.response]

    return control
