"""`POST /hive/generate`: one request renders one or more dialogues, and draws one or more answers to each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

from hive_frontend.client.body_fields import grammar_fields, message_fields, sampling_fields
from hive_frontend.client.http.answers import as_dict, read_generated
from hive_frontend.client.http.merging import PendingCall, fail_started, next_attempt, try_abort, waiting
from hive_frontend.client.http.prompts import Prompt, PromptCache
from hive_frontend.client.http.transport import Transport, is_transient_status, message_of
from hive_frontend.client.json_text import Json
from hive_frontend.errors import ModelError
from hive_frontend.wire import custom_params

PATH = "/hive/generate"


class HiveGenerate:
    """Sends requests to `/hive/generate` of the server behind `transport`; `tag_of` returns the tag of a request."""

    def __init__(
        self, transport: Transport, prompts: PromptCache, tag_of: Callable[[Any], Mapping[str, Any]]
    ) -> None:
        self._transport = transport
        self._prompts = prompts
        self._tag_of = tag_of

    async def draw(
        self, calls: Sequence[PendingCall], adapters: Mapping[str | None, str | None], attempts: int
    ) -> bool:
        """Settle `calls`; False if the server does not have the route. `adapters` are those of the calls' models."""
        drawing = _Drawing(self._transport, self._prompts, self._tag_of, calls, adapters)
        try:
            return await self._transport.stream(
                PATH,
                drawing.body,
                drawing.take,
                on_end=drawing.end,
                attempts=attempts,
                may_retry=drawing.may_retry,
                form="lines",
                missing_ok=True,
            )
        except ModelError:
            # The server's error for a call says more than the error that ended the last attempt.
            for call in calls:
                if call.error is not None:
                    call.settle(call.error)
            if waiting(calls):
                raise
            return True


class _SharedPrompt:
    """A prompt in a request, and the calls that share it: they differ only in seed and tag."""

    def __init__(self, prompts: PromptCache, calls: Sequence[PendingCall]) -> None:
        self._prompts = prompts
        self._calls = calls
        self._prefix: Sequence[int] = ()
        self.ids: Sequence[int] = ()
        """The prompt's tokens, once the server has told them."""

    def body(self, tag_of: Callable[[Any], Mapping[str, Any]], adapter: str | None) -> Json:
        """Return the fields of the prompt and its samples."""
        calls = self._calls
        request = calls[0].request
        streams = calls[0].text is not None
        tags = [tag_of(call.request) for call in calls]
        shared = dict(tags[0])
        for tag in tags[1:]:
            shared = {name: value for name, value in shared.items() if tag.get(name) == value}
        settings = sampling_fields(request.sampling)
        settings |= grammar_fields(request.sampling)
        settings["max_new_tokens"] = request.sampling.max_tokens
        settings["custom_params"] = custom_params(shared)
        if streams:
            # The server can only trim text that it has not sent yet, so StreamedText ends texts at stop strings
            # instead.
            settings["no_stop_trim"] = True
        body: Json = {"sampling_params": settings, "stream": streams}
        if request.prompt is not None:
            body["text"] = request.prompt
        else:
            body["messages"] = message_fields(request.messages)
            # A known prompt must be rendered to the same tokens again, so it begins with the same prefix as before.
            known = self._prompts.get(request.session, request.messages)
            self._prefix = (
                self._prompts.prefix(request.session, request.messages)
                if known is None
                else known.ids[: known.kept]
            )
            if self._prefix:
                body["prefix_ids"] = list(self._prefix)
        if adapter is not None:
            body["lora_path"] = adapter
        body["samples"] = [
            _sample(call, {name: value for name, value in tag.items() if name not in shared})
            for call, tag in zip(calls, tags, strict=True)
        ]
        return body

    def take(self, rendered: Json) -> None:
        """Process the line about the prompt."""
        request = self._calls[0].request
        kept = rendered["kept"]
        self.ids = [*self._prefix[:kept], *rendered["ids"]]
        if self._prompts.get(request.session, request.messages) is None:
            self._prompts.add(request.session, request.messages, Prompt("", self.ids, {}, kept))


class _Drawing:
    """One request with its retries. Each attempt sends the calls that have no answer yet."""

    def __init__(
        self,
        transport: Transport,
        prompts: PromptCache,
        tag_of: Callable[[Any], Mapping[str, Any]],
        calls: Sequence[PendingCall],
        adapters: Mapping[str | None, str | None],
    ) -> None:
        self._transport = transport
        self._what = f"POST {transport.url}{PATH}"
        self._prompts = prompts
        self._tag_of = tag_of
        self._calls = calls
        self._adapters = adapters
        self._shared: list[_SharedPrompt] = []
        """The prompts of this attempt."""
        self._sent: list[tuple[PendingCall, _SharedPrompt]] = []
        """The calls of this attempt, in the order of the server's numbers, each with its prompt."""
        self._transient_status: int | None = None
        """Status of a single call of this attempt that failed transiently, if any did."""

    def body(self) -> Json:
        """Return the body of the next attempt, for all calls that are still waiting."""
        self._transient_status = None
        self._shared, self._sent, bodies = [], [], []
        for _, group in groupby(next_attempt(self._calls, self._abort), key=lambda call: call.prompt_key):
            calls = list(group)
            shared = _SharedPrompt(self._prompts, calls)
            bodies.append(shared.body(self._tag_of, self._adapters[calls[0].request.model]))
            self._shared.append(shared)
            self._sent += [(call, shared) for call in calls]
        return bodies[0] if len(bodies) == 1 else {"calls": bodies}

    def take(self, line: Json) -> None:
        """Process a line of the answer: about the prompt, or about one of the calls."""
        if "prompt" in line:
            rendered = line["prompt"]
            self._shared[rendered.get("call", 0)].take(rendered)
            return
        index = line.get("index")
        if not isinstance(index, int) or not 0 <= index < len(self._sent):
            raise ModelError(f"{self._what}: {_why(line)}", status=_status(line))
        call, shared = self._sent[index]
        if not call.is_waiting:
            return
        if "error" in line:
            call.error = ModelError(
                f"{self._what}: the server answered {_status(line)}: {message_of(line)}", status=_status(line)
            )
            if call.started or not is_transient_status(_status(line) or 0):
                call.settle(call.error)
            else:
                self._transient_status = _status(line)
            return
        try:
            self._deliver(call, shared, line)
        except Exception as error:
            if len(self._sent) == 1:
                raise
            # The listener of one call must not end the others.
            call.settle(error)
            self._transport.connection().start(call.rid, asyncio.ensure_future(try_abort(self._abort(call))))

    def _deliver(self, call: PendingCall, shared: _SharedPrompt, line: Json) -> None:
        """Hand a piece of an answer, or all of it, to its call."""
        meta = as_dict(line.get("meta_info"))
        finish = meta.get("finish_reason")
        if call.text is not None:
            call.started = True
            if finish is None:
                call.text.grow(line["text"])
                return
            call.text.text = line["text"]
            line["text"] = call.text.finish(as_dict(finish).get("matched"))
        request = call.request
        done = read_generated(line, shared.ids)
        if request.prompt is None and done.output_ids:
            self._prompts.add_answer(request.session, request.messages, done.text, done.output_ids)
        call.settle(done)

    def end(self) -> int | None:
        """Return the status for which to retry after the end of the stream; None if there is none."""
        if self._transient_status is None and waiting(self._calls):
            raise ModelError(f"{self._what}: the stream ended before the answer was complete")
        return self._transient_status

    def may_retry(self, error: ModelError) -> bool:
        """Return whether any call can be retried after a transport error."""
        return fail_started(self._calls, error)

    async def _abort(self, call: PendingCall) -> None:
        await self._transport.send(
            "DELETE", f"/hive/requests/{call.rid}", None, attempts=1, missing_ok=True, wait_for_restart=False
        )


def _sample(call: PendingCall, tag: Json) -> Json:
    sample: Json = {"sampling_seed": call.request.seed}
    if call.rid:
        sample["rid"] = call.rid
    if tag:
        sample["hive"] = tag
    return sample


def _status(line: Json) -> int | None:
    status = as_dict(line.get("error")).get("status")
    return status if isinstance(status, int) else None


def _why(line: Json) -> str:
    if "error" in line:
        return f"the server answered {_status(line)}: {message_of(line)}"
    return f"the server answered for sample {line.get('index')!r}, which was not requested"
