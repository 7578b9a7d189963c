"""SGLang's `POST /generate`: one answer, or one for each of several calls that differ only in their seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hive_frontend.client.http.answers import as_dict, read_generated
from hive_frontend.client.http.merging import PendingCall, fail_started, next_attempt
from hive_frontend.client.http.streamed import StreamedText
from hive_frontend.client.http.transport import Transport
from hive_frontend.client.json_text import Json
from hive_frontend.errors import ModelError

PATH = "/generate"
_NEVER = 2**31 - 1
"""Stream interval, in tokens, of a stream of which only the end is needed."""


class GenerateRoute:
    """Sends requests to `/generate` of the server behind `transport`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def draw(
        self, call: PendingCall, body: Json, attempts: int, headers: Mapping[str, str] | None
    ) -> Json | None:
        """Return the answer to one call; None if the server does not have the route."""
        if call.text is None:
            return await self._transport.send(
                "POST", PATH, body, attempts=attempts, headers=headers, missing_ok=True
            )
        # The server can only trim text that it has not sent yet, so StreamedText ends texts at stop strings instead.
        body["sampling_params"]["no_stop_trim"] = True
        body["stream"] = True
        streamed = _StreamedAnswer(call.text)
        if not await self._transport.events(
            PATH, body, streamed.take, attempts=attempts, headers=headers, missing_ok=True
        ):
            return None
        answer = streamed.answer()
        if answer is None:
            raise self._cut_off()
        return answer

    async def draw_batch(
        self,
        calls: Sequence[PendingCall],
        text: str,
        settings: Json,
        adapter: str | None,
        seeds: Sequence[int],
        attempts: int,
    ) -> bool:
        """Settle calls that continue the same text, each with its own seed; False if the server does not have the
        route. Calls that are still waiting afterwards cannot be answered this way.

        Without streaming, SGLang answers a list only when all of it is done. So the request always streams; if no call
        needs a stream, the server sends only the first token and the end of each answer.
        """
        seed_of = dict(zip(calls, seeds, strict=True))
        sent: list[PendingCall] = []
        streamed: list[_StreamedAnswer] = []

        def body() -> Json:
            sent[:] = next_attempt(calls, self._abort)
            streamed[:] = [_StreamedAnswer(call.text) for call in sent]
            streams = calls[0].text is not None
            own = {"no_stop_trim": True} if streams else {"stream_interval": _NEVER}
            listed: Json = {
                "text": [text] * len(sent),
                "sampling_params": [{**settings, **own, "sampling_seed": seed_of[call]} for call in sent],
                "stream": True,
            }
            if len(sent) > 1:
                listed["rid"] = [call.rid for call in sent]
            if adapter is not None:
                listed["lora_path"] = [adapter] * len(sent)
            return listed

        def take(event: Json) -> None:
            self._transport.check_event(PATH, event)
            number = event.get("index", 0)
            call = sent[number]
            if not call.is_waiting:
                return
            call.started = call.text is not None
            streamed[number].take(event)
            answer = streamed[number].answer()
            if answer is not None:
                call.settle(read_generated(answer))

        def end() -> None:
            for call in calls:
                if call.started:
                    call.settle(self._cut_off())

        return await self._transport.stream(
            PATH,
            body,
            take,
            on_end=end,
            attempts=attempts,
            may_retry=lambda error: fail_started(calls, error),
            missing_ok=True,
        )

    async def _abort(self, call: PendingCall) -> None:
        await self._transport.send(
            "POST", "/abort_request", {"rid": call.rid}, attempts=1, missing_ok=True, wait_for_restart=False
        )

    def _cut_off(self) -> ModelError:
        return ModelError(
            f"POST {self._transport.url}{PATH}: the stream ended before the answer was complete"
        )


class _StreamedAnswer:
    """An answer that arrives in events. With --incremental-streaming-output an event has the new text only, otherwise
    all text so far."""

    def __init__(self, text: StreamedText | None) -> None:
        self._text = text or StreamedText(lambda piece: None, ())
        self._streams = text is not None
        self._ids: list[int] = []
        self._last: Json = {}

    def take(self, event: Json) -> None:
        """Process the next event."""
        self._last = event
        new_ids = event.get("output_ids") or []
        if len(new_ids) < as_dict(event.get("meta_info")).get("completion_tokens", 0):
            self._ids += new_ids
            self._text.grow(self._text.text + event["text"])
        else:
            self._ids = new_ids
            self._text.grow(event["text"])

    def answer(self) -> Json | None:
        """Return the complete answer in the format of an answer that is not streamed; None if it is not complete."""
        finish: Any = as_dict(as_dict(self._last.get("meta_info")).get("finish_reason"))
        if not finish:
            return None
        # Without `no_stop_trim` the server has already removed the stop string.
        text = self._text.finish(finish.get("matched")) if self._streams else self._text.text
        return {**self._last, "text": text, "output_ids": self._ids}
