"""`POST /hive/generate`: one request renders a dialogue, and draws one answer or many."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hive_frontend.client.http.answers import as_dict, read_generated
from hive_frontend.client.http.merging import Ask, give_up_begun, next_attempt, waiting
from hive_frontend.client.http.prompts import Prompt, PromptCache
from hive_frontend.client.http.transport import Transport, is_transient_status, message_of
from hive_frontend.client.json_text import Json
from hive_frontend.client.spelling import grammar_of, settings_of, spelled
from hive_frontend.errors import ModelError
from hive_frontend.wire import custom_params

PATH = "/hive/generate"


class HiveGenerate:
    """Asks the server behind `transport`; `tag_of` says who makes a request."""

    def __init__(
        self, transport: Transport, prompts: PromptCache, tag_of: Callable[[Any], Mapping[str, Any]]
    ) -> None:
        self._transport = transport
        self._prompts = prompts
        self._tag_of = tag_of

    async def draw(self, asks: Sequence[Ask], adapter: str | None, attempts: int) -> bool:
        """Settle `asks`, which ask for the same; False if the server has no such route."""
        drawing = _Drawing(self._transport, self._prompts, self._tag_of, asks, adapter)
        try:
            return await self._transport.stream(
                PATH,
                drawing.body,
                drawing.take,
                on_end=drawing.end,
                attempts=attempts,
                may_repeat=drawing.may_repeat,
                form="lines",
                missing_ok=True,
            )
        except ModelError:
            # What the server said of one of them says more than how the last attempt ended.
            for ask in asks:
                if ask.error is not None:
                    ask.settle(ask.error)
            if waiting(asks):
                raise
            return True


class _Drawing:
    """One request, in as many attempts as it takes: each asks for what has not been answered."""

    def __init__(
        self,
        transport: Transport,
        prompts: PromptCache,
        tag_of: Callable[[Any], Mapping[str, Any]],
        asks: Sequence[Ask],
        adapter: str | None,
    ) -> None:
        self._transport = transport
        self._what = f"POST {transport.url}{PATH}"
        self._prompts = prompts
        self._tag_of = tag_of
        self._asks = asks
        self._adapter = adapter
        self._sent: list[Ask] = []
        self._prefix: Sequence[int] = ()
        self._prompt_ids: Sequence[int] = ()
        self._passing: int | None = None
        """Why one of this attempt has failed alone, if it is something that passes."""

    def body(self) -> Json:
        """The request for all that still wait."""
        self._sent = asks = next_attempt(self._asks, self._give_up)
        self._passing = None
        request = asks[0].request
        streams = asks[0].text is not None
        tags = [self._tag_of(ask.request) for ask in asks]
        shared = dict(tags[0])
        for tag in tags[1:]:
            shared = {name: value for name, value in shared.items() if tag.get(name) == value}
        settings = settings_of(request.sampling)
        settings |= grammar_of(request.sampling)
        settings["max_new_tokens"] = request.sampling.max_tokens
        settings["custom_params"] = custom_params(shared)
        if streams:
            # The server would only take away what has not been sent yet: StreamedText ends texts at stop strings.
            settings["no_stop_trim"] = True
        body: Json = {"sampling_params": settings, "stream": streams}
        if request.prompt is not None:
            body["text"] = request.prompt
        else:
            body["messages"] = spelled(request.messages)
            # A prompt that is known is to be the same again, so it begins as it began the first time.
            known = self._prompts.get(request.session, request.messages)
            self._prefix = (
                self._prompts.prefix(request.session, request.messages)
                if known is None
                else known.ids[: known.kept]
            )
            if self._prefix:
                body["prefix_ids"] = list(self._prefix)
        if self._adapter is not None:
            body["lora_path"] = self._adapter
        body["samples"] = [
            _sample(ask, {name: value for name, value in tag.items() if name not in shared})
            for ask, tag in zip(asks, tags, strict=True)
        ]
        return body

    def take(self, line: Json) -> None:
        """What the server says of the prompt, or of one of the answers."""
        if "prompt" in line:
            self._take_prompt(line["prompt"])
            return
        index = line.get("index")
        if not isinstance(index, int) or not 0 <= index < len(self._sent):
            raise ModelError(f"{self._what}: {_why(line)}", status=_status(line))
        ask = self._sent[index]
        if not ask.waits:
            return
        if "error" in line:
            ask.error = ModelError(
                f"{self._what}: the server answered {_status(line)}: {message_of(line)}", status=_status(line)
            )
            if ask.begun or not is_transient_status(_status(line) or 0):
                ask.settle(ask.error)
            else:
                self._passing = _status(line)
            return
        meta = as_dict(line.get("meta_info"))
        finish = meta.get("finish_reason")
        if ask.text is not None:
            ask.begun = True
            if finish is None:
                ask.text.grow(line["text"])
                return
            ask.text.text = line["text"]
            line["text"] = ask.text.finish(as_dict(finish).get("matched"))
        request = ask.request
        done = read_generated(line, self._prompt_ids)
        if request.prompt is None and done.output_ids:
            self._prompts.add_answer(request.session, request.messages, done.text, done.output_ids)
        ask.settle(done)

    def end(self) -> int | None:
        """The status to go by when the stream has ended."""
        if self._passing is None and waiting(self._asks):
            raise ModelError(f"{self._what}: the stream ended before the answer was complete")
        return self._passing

    def may_repeat(self, error: ModelError) -> bool:
        """Whether anything is left to be asked for after an error of the transport."""
        return give_up_begun(self._asks, error)

    async def _give_up(self, ask: Ask) -> None:
        await self._transport.send(
            "DELETE", f"/hive/requests/{ask.rid}", None, attempts=1, missing_ok=True, may_wait=False
        )

    def _take_prompt(self, prompt: Json) -> None:
        request = self._sent[0].request
        kept = prompt["kept"]
        self._prompt_ids = [*self._prefix[:kept], *prompt["ids"]]
        if self._prompts.get(request.session, request.messages) is None:
            self._prompts.add(request.session, request.messages, Prompt("", self._prompt_ids, {}, kept))


def _sample(ask: Ask, tag: Json) -> Json:
    sample: Json = {"sampling_seed": ask.request.seed}
    if ask.rid:
        sample["rid"] = ask.rid
    if tag:
        sample["hive"] = tag
    return sample


def _status(line: Json) -> int | None:
    status = as_dict(line.get("error")).get("status")
    return status if isinstance(status, int) else None


def _why(line: Json) -> str:
    if "error" in line:
        return f"the server answered {_status(line)}: {message_of(line)}"
    return f"the answer has no sample of index {line.get('index')!r}"
