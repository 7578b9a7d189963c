"""The endpoints of OpenAI, as its own servers, SGLang, vLLM and others have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hive_frontend.client.answers import as_dict, choices_of, completion_of, read_choice, shares
from hive_frontend.client.base import Completion
from hive_frontend.client.json_text import Json
from hive_frontend.client.merging import Ask, give_up_begun, waiting
from hive_frontend.client.transport import Transport
from hive_frontend.errors import ModelError


class OpenAIRoutes:
    """Asks the server behind `transport`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def draw(
        self, path: str, asks: Sequence[Ask], body: Json, attempts: int, headers: Mapping[str, str] | None
    ) -> None:
        """Settle calls with the answers to `body`, one choice each; those that get none are left waiting."""
        if asks[0].text is not None:
            await self._stream(path, asks, body, attempts, headers)
            return
        if len(asks) > 1:
            body["n"] = len(asks)
        answer = await self._transport.send("POST", path, body, attempts=attempts, headers=headers)
        assert answer is not None
        choices = choices_of(answer)
        used = shares(as_dict(answer.get("usage")).get("completion_tokens"), len(choices))
        for ask, choice, tokens in zip(asks, choices, used, strict=False):
            ask.settle(read_choice(as_dict(choice), tokens))

    async def _stream(
        self, path: str, asks: Sequence[Ask], body: Json, attempts: int, headers: Mapping[str, str] | None
    ) -> None:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        sent: list[Ask] = []
        finish: dict[int, Any] = {}
        matched: dict[int, Any] = {}
        usage: Json = {}

        def next_body() -> Json:
            sent[:] = waiting(asks)
            finish.clear()
            return {**body, "n": len(sent)} if len(sent) > 1 else body

        def on_event(event: Json) -> None:
            nonlocal usage
            self._transport.check_event(path, event)
            usage = event.get("usage") or usage
            # The last event may hold nothing but what was used.
            for choice in event.get("choices") or []:
                index = choice.get("index", 0)
                if not isinstance(index, int) or not 0 <= index < len(sent):
                    continue
                ask = sent[index]
                # A choice that comes may be empty, and is one all the same.
                ask.begun = True
                if ask.gone or ask.text is None:
                    continue
                piece = choice["delta"].get("content") if "delta" in choice else choice.get("text")
                ask.text.grow(ask.text.text + (piece or ""))
                finish[index] = choice.get("finish_reason") or finish.get(index)
                matched[index] = choice.get("matched_stop") or matched.get(index)

        await self._transport.stream(
            path,
            next_body,
            on_event,
            attempts=attempts,
            may_repeat=lambda error: give_up_begun(asks, error),
            headers=headers,
        )
        used = shares(usage.get("completion_tokens"), len(sent))
        for index, ask in enumerate(sent):
            if finish.get(index) is not None and ask.text is not None:
                ask.settle(_completion(ask.text.finish(matched.get(index)), used[index], finish[index]))
            elif ask.begun or len(sent) == 1:
                ask.settle(
                    ModelError(
                        f"POST {self._transport.url}{path}: the stream ended before the answer was complete"
                    )
                )


def _completion(text: str, used: Any, finish: Any) -> Completion:
    return completion_of(text, {}, used, finish)
