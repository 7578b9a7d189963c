"""The endpoints of OpenAI, as its own servers, SGLang, vLLM and others have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hive_frontend.client.http.answers import (
    NOTHING_READ,
    as_dict,
    choices_of,
    completion_of,
    read_choice,
    read_usage,
    shares,
)
from hive_frontend.client.http.merging import Ask, give_up_begun, waiting
from hive_frontend.client.http.model_names import Served
from hive_frontend.client.http.transport import Transport
from hive_frontend.client.json_text import Json
from hive_frontend.client.spelling import is_wrapped, openai_grammar, unwrapped
from hive_frontend.errors import ModelError


class OpenAIRoutes:
    """Asks the server behind `transport`."""

    def __init__(self, transport: Transport, extra_body: Mapping[str, Any]) -> None:
        self._transport = transport
        self._extra_body = extra_body
        self._max_tokens = "max_tokens"
        """What the chat endpoint calls it; OpenAI's later models have another word."""

    async def draw(
        self,
        asks: Sequence[Ask],
        prompt: Json,
        served: Served,
        attempts: int,
        headers: Mapping[str, str] | None,
    ) -> None:
        """Settle calls with a choice each; those that get none are left waiting. `prompt` has the fields of the body
        that all servers spell alike."""
        sampling = asks[0].request.sampling
        chat = "messages" in prompt
        grammar = openai_grammar(sampling, served.kind, chat=chat)
        wrapped = is_wrapped(sampling, served.kind, chat=chat)
        while True:
            length = self._max_tokens if chat else "max_tokens"
            body = {**prompt, length: sampling.max_tokens, **grammar, **self._extra_body}
            if asks[0].text is not None and served.kind == "sglang" and "stop" in body:
                body["no_stop_trim"] = True
            path = "/v1/chat/completions" if chat else "/v1/completions"
            try:
                await self._draw(path, asks, body, attempts, headers, wrapped)
                return
            except ModelError as error:
                if error.status != 400 or length != "max_tokens" or "max_completion_tokens" not in str(error):
                    raise
                self._max_tokens = "max_completion_tokens"

    async def _draw(
        self,
        path: str,
        asks: Sequence[Ask],
        body: Json,
        attempts: int,
        headers: Mapping[str, str] | None,
        wrapped: bool,
    ) -> None:
        # Half an object is no text to show: it is handed on when it is whole.
        if asks[0].text is not None and not wrapped:
            await self._stream(path, asks, body, attempts, headers)
            return
        if len(asks) > 1:
            body["n"] = len(asks)
        answer = await self._transport.send("POST", path, body, attempts=attempts, headers=headers)
        assert answer is not None
        choices = choices_of(answer)
        usage = as_dict(answer.get("usage"))
        used = shares(usage.get("completion_tokens"), len(choices))
        read = read_usage(usage)
        for ask, choice, tokens in zip(asks, choices, used, strict=False):
            done = read_choice(as_dict(choice), tokens, read)
            if wrapped:
                done = done._replace(text=unwrapped(done.text))
                if ask.text is not None:
                    ask.text.text = done.text
                    ask.text.finish(None)
            if ask.waits:
                # The prompt was read once for all of them: the first that still waits has it on its bill.
                read = NOTHING_READ
            ask.settle(done)

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
        read = read_usage(usage)
        for index, ask in enumerate(sent):
            if finish.get(index) is not None and ask.text is not None:
                text = ask.text.finish(matched.get(index))
                done = completion_of(text, {}, used[index], finish[index], read)
                if ask.waits:
                    read = NOTHING_READ
                ask.settle(done)
            elif ask.begun or len(sent) == 1:
                ask.settle(
                    ModelError(
                        f"POST {self._transport.url}{path}: the stream ended before the answer was complete"
                    )
                )
