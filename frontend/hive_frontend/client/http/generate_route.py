"""`POST /generate` of SGLang: one answer, or one each for several calls that differ in their seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hive_frontend.client.http.answers import as_dict, read_generated
from hive_frontend.client.http.merging import Ask, give_up_begun, next_attempt
from hive_frontend.client.http.streamed import StreamedText
from hive_frontend.client.http.transport import Transport
from hive_frontend.client.json_text import Json
from hive_frontend.errors import ModelError

PATH = "/generate"
_NEVER = 2**31 - 1
"""Tokens between two events of a stream of which only the end is wanted."""


class GenerateRoute:
    """Asks the server behind `transport`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def draw(
        self, ask: Ask, body: Json, attempts: int, headers: Mapping[str, str] | None
    ) -> Json | None:
        """The answer to one call; None if the server has no such route."""
        if ask.text is None:
            return await self._transport.send(
                "POST", PATH, body, attempts=attempts, headers=headers, missing_ok=True
            )
        # The server would only take away what has not been sent yet: StreamedText ends texts at stop strings.
        body["sampling_params"]["no_stop_trim"] = True
        body["stream"] = True
        growing = _Growing(ask.text)
        if not await self._transport.events(
            PATH, body, growing.take, attempts=attempts, headers=headers, missing_ok=True
        ):
            return None
        answer = growing.answer()
        if answer is None:
            raise self._cut_off()
        return answer

    async def draw_together(
        self,
        asks: Sequence[Ask],
        text: str,
        settings: Json,
        adapter: str | None,
        seeds: Sequence[int],
        attempts: int,
    ) -> bool:
        """Settle calls that go on with one text, each with its seed; False if the server has no such route. Those that
        it leaves waiting get no answer this way.

        SGLang tells nothing of a list before all of it is done, unless it streams. So it does, and of calls that want
        no stream it is asked to send the first token and the end.
        """
        seed_of = dict(zip(asks, seeds, strict=True))
        sent: list[Ask] = []
        growing: list[_Growing] = []

        def body() -> Json:
            sent[:] = next_attempt(asks, self._give_up)
            growing[:] = [_Growing(ask.text) for ask in sent]
            streams = asks[0].text is not None
            own = {"no_stop_trim": True} if streams else {"stream_interval": _NEVER}
            listed: Json = {
                "text": [text] * len(sent),
                "sampling_params": [{**settings, **own, "sampling_seed": seed_of[ask]} for ask in sent],
                "stream": True,
            }
            if len(sent) > 1:
                listed["rid"] = [ask.rid for ask in sent]
            if adapter is not None:
                listed["lora_path"] = [adapter] * len(sent)
            return listed

        def take(event: Json) -> None:
            self._transport.check_event(PATH, event)
            number = event.get("index", 0)
            ask = sent[number]
            if not ask.waits:
                return
            ask.begun = ask.text is not None
            growing[number].take(event)
            answer = growing[number].answer()
            if answer is not None:
                ask.settle(read_generated(answer))

        def end() -> None:
            for ask in asks:
                if ask.begun:
                    ask.settle(self._cut_off())

        return await self._transport.stream(
            PATH,
            body,
            take,
            on_end=end,
            attempts=attempts,
            may_repeat=lambda error: give_up_begun(asks, error),
            missing_ok=True,
        )

    async def _give_up(self, ask: Ask) -> None:
        await self._transport.send(
            "POST", "/abort_request", {"rid": ask.rid}, attempts=1, missing_ok=True, may_wait=False
        )

    def _cut_off(self) -> ModelError:
        return ModelError(
            f"POST {self._transport.url}{PATH}: the stream ended before the answer was complete"
        )


class _Growing:
    """An answer that comes in events. With --incremental-streaming-output they hold what is new, otherwise all that
    came so far."""

    def __init__(self, text: StreamedText | None) -> None:
        self._text = text or StreamedText(lambda piece: None, ())
        self._streams = text is not None
        self._ids: list[int] = []
        self._last: Json = {}

    def take(self, event: Json) -> None:
        """The next event."""
        self._last = event
        new_ids = event.get("output_ids") or []
        if len(new_ids) < as_dict(event.get("meta_info")).get("completion_tokens", 0):
            self._ids += new_ids
            self._text.grow(self._text.text + event["text"])
        else:
            self._ids = new_ids
            self._text.grow(event["text"])

    def answer(self) -> Json | None:
        """The last event, made to look like the answer that is not streamed; None as long as there is none."""
        finish: Any = as_dict(as_dict(self._last.get("meta_info")).get("finish_reason"))
        if not finish:
            return None
        # Of what nobody watches the server has taken the stop string away.
        text = self._text.finish(finish.get("matched")) if self._streams else self._text.text
        return {**self._last, "text": text, "output_ids": self._ids}
