"""Tells the schedulers how chats end: in a tool call, after which the session waits for its result, or in an answer.

Without a parser for tool calls every answer is for a person, and the scheduler sees its end itself.  With one, the end
is known only here, from the text; a control message that expects no response reports it for the request's session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from hive_frontend.wire import Event

from hive.server.agents.tenant import qualified
from hive.server.request_tag import tag_in
from sglang_patches.http import routes
from sglang_patches.http.arrival import now
from sglang_patches.http.control import CONTROL_PREFIX
from sglang_patches.http.request_middleware import PARSED

_GRAMMARS = ("json_schema", "regex", "ebnf", "structural_tag")


class ChatEnds:
    """Observes the chats of a running tokenizer manager."""

    def __init__(self, tokenizer_manager: Any) -> None:
        self._manager = tokenizer_manager
        self._pending: list[dict[str, Any]] = []
        """Ends of this turn of the event loop."""

    def observe(self, request: Any) -> tuple[bool, ChatEnd | None]:
        """Return whether a person reads the request's answer, as far as that is known, and who observes its end.

        Args:
            request: the client's request; None for one of the server's own.
        """
        scope = getattr(request, "scope", None) or {}
        if scope.get("path") not in routes.DIALOGUES:
            return False, None
        body, parser = scope.get(PARSED), scope["app"].state.openai_serving_chat.tool_call_parser
        if not parser or (body is not None and not body.get("tools")):
            return True, None
        return False, ChatEnd(self, parser)

    def ended(self, params: Mapping[str, Any], event: Event) -> None:
        """Report how a chat ended, unless its client has said so."""
        session = (tag := tag_in(params.get("custom_params"))).get("session")
        if session is None or "expects_event" in tag:
            return
        end = {"session": qualified(tag.get("tenant"), session), "event": event}
        if not self._pending:
            asyncio.get_running_loop().call_soon(self._send)
        self._pending.append(end)

    def incremental(self) -> bool:
        """Whether each output of a stream has only its own text."""
        return bool(self._manager.incremental_streaming_output)

    def _send(self) -> None:
        from sglang.srt.managers.io_struct import DumperControlReqInput

        ends, self._pending = self._pending, []
        body = {"ends": ends, "now": now()}
        self._manager._dispatch_to_scheduler(
            DumperControlReqInput(method=f"{CONTROL_PREFIX}observed", body=body)
        )


class ChatEnd:
    """Observes the outputs of one request; ``parser`` is the name of the parser for its tool calls."""

    def __init__(self, ends: ChatEnds, parser: str) -> None:
        self._ends = ends
        self._parser = parser
        self._texts: dict[int, str] = {}
        """Texts so far, by index of the output."""

    def saw(self, obj: Any, item: Mapping[str, Any]) -> None:
        """Note an output of the engine to a request."""
        index, text = item.get("index", 0), item.get("text") or ""
        if obj.stream and self._ends.incremental():
            text = self._texts[index] = self._texts.get(index, "") + text
        reason = item["meta_info"].get("finish_reason")
        if not isinstance(reason, dict) or reason.get("type") != "stop":
            return
        params = obj.sampling_params[0] if isinstance(obj.sampling_params, list) else obj.sampling_params
        if _calls_tool(self._parser, text):
            self._ends.ended(params, "tool")
        elif not any(params.get(name) for name in _GRAMMARS):
            # A grammar may stand for a tool call that the request requires, or for the form of an answer.
            self._ends.ended(params, "human")


def _calls_tool(parser: str, text: str) -> bool:
    from sglang.srt.function_call.function_call_parser import FunctionCallParser

    # Without tools, the parser itself finds no call.
    return bool(FunctionCallParser([], parser).detector.has_tool_call(text))
