"""OpenAI's endpoints, as served by OpenAI, SGLang, vLLM and others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hive_frontend.client.body_fields import (
    chat_fields,
    is_wrapped,
    openai_grammar_fields,
    sampling_fields,
    tool_fields,
    unwrapped,
)
from hive_frontend.client.http.answers import (
    NO_USAGE,
    StreamedCalls,
    as_dict,
    choices_of,
    completion_of,
    read_choice,
    read_usage,
    split_evenly,
)
from hive_frontend.client.http.merging import PendingCall, fail_started, waiting
from hive_frontend.client.http.model_names import Served
from hive_frontend.client.http.tags import Identity
from hive_frontend.client.http.transport import Transport
from hive_frontend.client.json_text import Json
from hive_frontend.errors import ModelError


class OpenAIRoutes:
    """Sends requests to OpenAI's endpoints of the server behind `transport`."""

    def __init__(self, transport: Transport, extra_body: Mapping[str, Any]) -> None:
        self._transport = transport
        self._extra_body = extra_body
        self._max_tokens = "max_tokens"
        """Name of the field at the chat endpoint; later models of OpenAI use another one."""

    async def draw(
        self,
        calls: Sequence[PendingCall],
        identity: Identity,
        served: Served,
        attempts: int,
    ) -> None:
        """Settle each call with one choice; calls without a choice stay waiting. `identity` is that of the first."""
        for call in calls:
            call.unchecked = True
        request = calls[0].request
        sampling = request.sampling
        chat = request.prompt is None
        prompt: Json = {"messages": chat_fields(request.messages)} if chat else {"prompt": request.prompt}
        if request.tools is not None:
            prompt |= tool_fields(request.tools)
        prompt |= {
            "model": served.name,
            **sampling_fields(sampling),
            "seed": identity.seed,
            **identity.fields,
        }
        grammar = openai_grammar_fields(sampling, served.kind, chat=chat)
        wrapped = is_wrapped(sampling, served.kind, chat=chat)
        while True:
            length = self._max_tokens if chat else "max_tokens"
            body = {**prompt, length: sampling.max_tokens, **grammar, **self._extra_body}
            if calls[0].text is not None and served.kind == "sglang" and "stop" in body:
                body["no_stop_trim"] = True
            path = "/v1/chat/completions" if chat else "/v1/completions"
            try:
                await self._draw(path, calls, body, attempts, identity.headers, wrapped)
                return
            except ModelError as error:
                if error.status != 400 or length != "max_tokens" or "max_completion_tokens" not in str(error):
                    raise
                self._max_tokens = "max_completion_tokens"

    async def _draw(
        self,
        path: str,
        calls: Sequence[PendingCall],
        body: Json,
        attempts: int,
        headers: Mapping[str, str] | None,
        wrapped: bool,
    ) -> None:
        # A wrapped answer is JSON and cannot be shown in parts: it is delivered when it is complete.
        if calls[0].text is not None and not wrapped:
            await self._stream(path, calls, body, attempts, headers)
            return
        if len(calls) > 1:
            body["n"] = len(calls)
        answer = await self._transport.send("POST", path, body, attempts=attempts, headers=headers)
        assert answer is not None
        choices = choices_of(answer)
        usage = as_dict(answer.get("usage"))
        used = split_evenly(usage.get("completion_tokens"), len(choices))
        prompt_usage = read_usage(usage)
        for call, choice, tokens in zip(calls, choices, used, strict=False):
            done = read_choice(as_dict(choice), tokens, prompt_usage)
            if wrapped:
                done = done._replace(text=unwrapped(done.text))
                if call.text is not None:
                    call.text.text = done.text
                    call.text.finish(None)
            if call.is_waiting:
                # The server read the prompt once: the first call that is still waiting is charged for it.
                prompt_usage = NO_USAGE
            call.settle(done)

    async def _stream(
        self,
        path: str,
        calls: Sequence[PendingCall],
        body: Json,
        attempts: int,
        headers: Mapping[str, str] | None,
    ) -> None:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        sent: list[PendingCall] = []
        finish: dict[int, Any] = {}
        matched: dict[int, Any] = {}
        tools: dict[int, StreamedCalls] = {}
        usage: Json = {}

        def next_body() -> Json:
            sent[:] = waiting(calls)
            finish.clear()
            tools.clear()
            return {**body, "n": len(sent)} if len(sent) > 1 else body

        def on_event(event: Json) -> None:
            nonlocal usage
            self._transport.check_event(path, event)
            usage = event.get("usage") or usage
            # The last event may have nothing but the usage.
            for choice in event.get("choices") or []:
                index = choice.get("index", 0)
                if not isinstance(index, int) or not 0 <= index < len(sent):
                    continue
                call = sent[index]
                # An empty choice counts, too.
                call.started = True
                if call.abandoned or call.text is None:
                    continue
                delta = as_dict(choice.get("delta"))
                piece = delta.get("content") if "delta" in choice else choice.get("text")
                if delta.get("tool_calls"):
                    tools.setdefault(index, StreamedCalls()).take(delta["tool_calls"])
                call.text.grow(call.text.text + (piece or ""))
                finish[index] = choice.get("finish_reason") or finish.get(index)
                matched[index] = choice.get("matched_stop") or matched.get(index)

        await self._transport.stream(
            path,
            next_body,
            on_event,
            attempts=attempts,
            may_retry=lambda error: fail_started(calls, error),
            headers=headers,
        )
        used = split_evenly(usage.get("completion_tokens"), len(sent))
        prompt_usage = read_usage(usage)
        for index, call in enumerate(sent):
            if finish.get(index) is not None and call.text is not None:
                text = call.text.finish(matched.get(index))
                done = completion_of(text, {}, used[index], finish[index], prompt_usage)
                if index in tools:
                    done = done._replace(tool_calls=tools[index].all())
                if call.is_waiting:
                    prompt_usage = NO_USAGE
                call.settle(done)
            elif call.started or len(sent) == 1:
                call.settle(
                    ModelError(
                        f"POST {self._transport.url}{path}: the stream ended before the answer was complete"
                    )
                )
