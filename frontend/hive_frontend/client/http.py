"""The client for servers that speak HTTP: Hive's own, stock SGLang, and OpenAI-compatible ones."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

from hive_frontend.cached_message import CachedMessage
from hive_frontend.client.base import (
    CallTimeout,
    Client,
    Completion,
    MessageCall,
    OnText,
    Request,
    check_limits,
    sample_seed,
)
from hive_frontend.client.behind_router import Affinity, BehindRouter, routing_headers
from hive_frontend.client.message_routes import MessageKind, MessageRoutes, message_path
from hive_frontend.client.prompts import Messages, Prompt, PromptCache
from hive_frontend.client.spelling import grammar_of, settings_of
from hive_frontend.client.streamed import StreamedText
from hive_frontend.client.transport import Json, Transport
from hive_frontend.dialogue import Message
from hive_frontend.errors import HiveError, ModelError
from hive_frontend.identity import check_label

T = TypeVar("T")

_RENDER_S = 10.0


class _Served(NamedTuple):
    """A model as the server knows it."""

    name: str
    """What `model` says in requests to OpenAI's endpoints."""
    adapter: str | None
    """What `lora_path` says in requests to `/generate`."""
    sglang: bool
    """Whether the server is one that takes SGLang's extensions of OpenAI's endpoints."""


class _Identity(NamedTuple):
    """What a request says of itself beside its prompt."""

    seed: int
    fields: Json
    """Of the body."""
    headers: dict[str, str] | None


class HttpClient(Client):
    """Talks to the server at `url`.

    A Hive server gets the tokens of a dialogue: those of earlier answers as the model wrote them, so that all of it
    is found in the server's caches again. It learns agent, session, state and sample number with every call,
    derives the seed of each sample itself, and tells how many tokens it replayed. Other servers are asked without
    these extras: stock SGLang through `/generate` and chat completions, OpenAI-compatible ones through chat
    completions and completions.

    `model` is the name of the model, or of a LoRA adapter, at the server (by default the first model that it
    lists). `timeout_s` bounds one call, its attempts and the pauses between them together. Transport errors and the
    statuses 502, 503 and 504 are tried `attempts` times in all, with back-off; anything else is tried once, and so
    is a stream of which a piece has come. A server that has answered before, and takes no connections now, is being
    restarted: it is waited for until `timeout_s`.

    `replay="off"` asks a Hive server to decode every token anew; `replay="distinct"` to draw without replacement:
    within a session no two answers to the same prompt, under the same settings, are made of the same tokens, until all
    are used up. Other servers cannot do that: a call raises `ModelError`.

    `servers` are the URLs of Hive servers where `url` is that of an `sglang-router` before them. The router forwards
    requests for tokens; all else is asked of `servers`, of which some may be down. Requests of a session go to the same
    server while it is up, or, with `affinity="agent"`, those of an agent in all sessions.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        model: str | None = None,
        timeout_s: float = 600.0,
        attempts: int = 5,
        replay: Literal["stepwise", "distinct", "off"] = "stepwise",
        tenant: str | None = None,
        servers: Sequence[str] | None = None,
        affinity: Affinity = "session",
    ) -> None:
        if replay not in ("stepwise", "distinct", "off"):
            raise ValueError(f'replay must be "stepwise", "distinct" or "off", not {replay!r}')
        if affinity not in ("session", "agent"):
            raise ValueError(f'affinity must be "session" or "agent", not {affinity!r}')
        check_limits(timeout_s, attempts)
        self._affinity = affinity
        self._model = model
        self._timeout_s = timeout_s
        self._attempts = attempts
        self._replay = replay
        self._tenant = None if tenant is None else check_label("tenant", tenant)
        # Agents and sessions are a tenant's, too, and the requests about them have no body to say it in.
        headers = {"x-hive-tenant": tenant} if tenant is not None else None
        self._behind = None if servers is None else BehindRouter(servers, api_key, headers)
        # Behind a router the tenant is named by what the router forwards, and must not be named twice.
        self._transport = Transport(url, api_key, headers if servers is None else None)
        self._messages = MessageRoutes(self._transport, replay)
        self._is_hive: bool | None = None
        """Whether the server has Hive's routes; None until it was asked for one."""
        self._has_generate = True
        self._served: dict[str | None, _Served] = {}
        self._prompts = PromptCache()

    @property
    def url(self) -> str:
        """The server's address, without `/v1`."""
        return self._transport.url

    async def complete(self, request: Request, on_text: OnText | None = None) -> Completion:
        return await self._limited(request, lambda attempts: self._complete(request, attempts, on_text))

    async def prefill(self, call: MessageCall) -> CachedMessage:
        return await self._limited(call.request, lambda attempts: self._make("prefill", call, attempts, None))

    async def decode(self, call: MessageCall, on_text: OnText | None = None) -> CachedMessage:
        return await self._limited(
            call.request, lambda attempts: self._make("decode", call, attempts, on_text)
        )

    async def delete_message(self, message: CachedMessage) -> None:
        await self._ask("DELETE", message_path(message), None, may_wait=False)

    async def _limited(self, request: Request, work: Callable[[int], Awaitable[T]]) -> T:
        """Do a call's work, given how often it may be tried, within the time that it may take."""
        timeout_s = self._timeout_s if request.timeout_s is None else request.timeout_s
        attempts = self._attempts if request.attempts is None else request.attempts
        check_limits(timeout_s, attempts)
        try:
            async with asyncio.timeout(timeout_s) as limit:
                return await work(attempts)
        except TimeoutError:
            if not limit.expired():
                raise
            raise CallTimeout(
                f"{self.url}: no answer within {timeout_s:g} s (timeout_s); the call was abandoned"
            ) from None

    def render(self, messages: Sequence[Message]) -> str:
        known = self._prompts.get("", tuple(messages))
        if known is not None:
            return known.text
        answer = None
        if self._is_hive is not False:
            body = _render_body(messages, [])
            ask = self._transport.send_blocking if self._behind is None else self._behind.ask_blocking
            answer = ask("/hive/render", body, timeout_s=_RENDER_S)
        if answer is None:
            raise ModelError(
                f"{self.url} is no Hive server, and only a Hive server shows the prompt that its chat template "
                "makes of a dialogue; start one with python -m hive.launch_server"
            )
        prompt = _read_prompt(answer, [])
        self._prompts.add("", tuple(messages), prompt)
        return prompt.text

    async def register(self, agent: str, session: str) -> None:
        if self._is_hive is not False:
            body = {"name": agent, "session": session}
            self._is_hive = await self._ask("POST", "/hive/agents", body, of_all=True) is not None

    async def end_session(self, session: str) -> None:
        self._prompts.forget(session)
        if self._is_hive:
            # A server that was restarted meanwhile does not know the session.
            await self._ask("DELETE", f"/hive/sessions/{session}", None, of_all=True, may_wait=False)

    async def aclose(self) -> None:
        await self._transport.aclose()
        if self._behind is not None:
            await self._behind.aclose()

    async def _ask(
        self, method: str, path: str, body: Json | None, *, of_all: bool = False, may_wait: bool = True
    ) -> Json | None:
        """A small request beside the calls; None for a missing route.

        Behind a router it goes to one of the servers, or to all of them.
        """
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                if self._behind is not None and of_all:
                    return await self._behind.tell(method, path, body)
                if self._behind is not None:
                    return await self._behind.ask(method, path, body, attempts=self._attempts)
                return await self._transport.send(
                    method, path, body, attempts=self._attempts, missing_ok=True, may_wait=may_wait
                )
        except TimeoutError:
            if not limit.expired():
                raise
            raise CallTimeout(
                f"{method} {self.url}{path}: no answer within {self._timeout_s:g} s (timeout_s)"
            ) from None

    # Calls

    async def _complete(self, request: Request, attempts: int, on_text: OnText | None) -> Completion:
        if request.prompt is None:
            prompt = await self._prompt(request.session, request.messages)
            if prompt is not None and prompt.sampling_params is not None:
                settings = {**prompt.sampling_params, **settings_of(request.sampling)}
                if stops := [*prompt.sampling_params.get("stop", ()), *request.sampling.stop]:
                    settings["stop"] = stops
                completion = await self._generate(
                    request, {"input_ids": list(prompt.ids)}, settings, attempts, on_text
                )
                if completion is None:
                    raise ModelError(f"{self.url} is a Hive server without /generate")
                return completion
            messages = _spelled(request.messages)
            return await self._openai(
                "/v1/chat/completions", request, {"messages": messages}, attempts, on_text
            )
        if self._has_generate:
            completion = await self._generate(
                request, {"text": request.prompt}, settings_of(request.sampling), attempts, on_text
            )
            if completion is not None:
                return completion
            self._has_generate = False
        return await self._openai("/v1/completions", request, {"prompt": request.prompt}, attempts, on_text)

    async def _generate(
        self, request: Request, prompt: Json, settings: Json, attempts: int, on_text: OnText | None
    ) -> Completion | None:
        """Ask SGLang's own endpoint; None if the server has none."""
        settings["max_new_tokens"] = request.sampling.max_tokens
        settings |= grammar_of(request.sampling)
        identity = await self._identity(request)
        settings |= {"sampling_seed": identity.seed, **identity.fields}
        body = {**prompt, "sampling_params": settings}
        if request.model is not None or self._model is not None:
            adapter = (await self._model_named(request.model)).adapter
            if adapter is not None:
                body["lora_path"] = adapter
        if on_text is None:
            answer = await self._transport.send(
                "POST", "/generate", body, attempts=attempts, headers=identity.headers, missing_ok=True
            )
        else:
            answer = await self._stream_generate(
                body, identity, attempts, StreamedText(on_text, settings.get("stop", ()))
            )
        if answer is None:
            return None
        meta = _dict(answer.get("meta_info"))
        completion = _completion(
            answer.get("text"), meta, meta.get("completion_tokens"), meta.get("finish_reason")
        )
        if "output_ids" not in answer:
            return completion
        output_ids = answer["output_ids"]
        if request.prompt is None:
            self._prompts.add_answer(request.session, request.messages, completion.text, output_ids)
        return completion._replace(prompt_ids=prompt.get("input_ids", ()), output_ids=output_ids)

    async def _stream_generate(
        self, body: Json, identity: _Identity, attempts: int, text: StreamedText
    ) -> Json | None:
        """The last event of a stream, made to look like the answer that is not streamed."""
        # The server would only take away what has not been sent yet: StreamedText ends texts at stop strings.
        body["sampling_params"]["no_stop_trim"] = True
        body["stream"] = True
        last: Json = {}
        ids: list[int] = []

        def on_event(event: Json) -> None:
            nonlocal last, ids
            last = event
            new_ids = event.get("output_ids") or []
            # With --incremental-streaming-output events hold what is new, otherwise all that came so far.
            if len(new_ids) < _dict(event.get("meta_info")).get("completion_tokens", 0):
                ids += new_ids
                text.grow(text.text + event["text"])
            else:
                ids = new_ids
                text.grow(event["text"])

        if not await self._transport.stream(
            "/generate", body, on_event, attempts=attempts, headers=identity.headers, missing_ok=True
        ):
            return None
        finish = _dict(_dict(last.get("meta_info")).get("finish_reason"))
        if not finish:
            raise self._cut_off("/generate")
        return {**last, "text": text.finish(finish.get("matched")), "output_ids": ids}

    async def _openai(
        self, path: str, request: Request, prompt: Json, attempts: int, on_text: OnText | None
    ) -> Completion:
        sampling = request.sampling
        grammar = sampling.grammar
        served = await self._model_named(request.model)
        identity = await self._identity(request)
        body = {
            **prompt,
            "model": served.name,
            "max_tokens": sampling.max_tokens,
            **settings_of(sampling),
            "seed": identity.seed,
            **identity.fields,
        }
        if grammar is not None:
            body["regex"] = grammar
        if sampling.json_schema is not None:
            schema = {"name": "answer", "schema": json.loads(sampling.json_schema)}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        if on_text is not None:
            return await self._stream_openai(
                path, body, identity, attempts, StreamedText(on_text, sampling.stop), served
            )
        answer = await self._transport.send("POST", path, body, attempts=attempts, headers=identity.headers)
        assert answer is not None
        return _read_choice(answer)

    async def _stream_openai(
        self,
        path: str,
        body: Json,
        identity: _Identity,
        attempts: int,
        text: StreamedText,
        served: _Served,
    ) -> Completion:
        if served.sglang and "stop" in body:
            body["no_stop_trim"] = True
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        usage: Json = {}
        finish: Any = None
        matched: Any = None

        def on_event(event: Json) -> None:
            nonlocal usage, finish, matched
            usage = event.get("usage") or usage
            # The last event may hold nothing but what was used.
            for choice in (event.get("choices") or [])[:1]:
                piece = choice["delta"].get("content") if "delta" in choice else choice.get("text")
                text.grow(text.text + (piece or ""))
                finish = choice.get("finish_reason") or finish
                matched = choice.get("matched_stop") or matched

        await self._transport.stream(path, body, on_event, attempts=attempts, headers=identity.headers)
        if finish is None:
            raise self._cut_off(path)
        return _completion(text.finish(matched), {}, usage.get("completion_tokens"), finish)

    async def _make(
        self, kind: MessageKind, call: MessageCall, attempts: int, on_text: OnText | None
    ) -> CachedMessage:
        """Have the server make a message."""
        if self._behind is not None:
            raise HiveError(
                f"{kind}: messages are kept by one server, and {self.url} is a router before several; give the "
                "HttpClient the URL of one of them"
            )
        adapter = None
        if call.request.model is not None or self._model is not None:
            adapter = (await self._model_named(call.request.model)).adapter
        return await self._messages.make(kind, call, adapter, attempts, on_text)

    def _cut_off(self, path: str) -> ModelError:
        return ModelError(f"POST {self.url}{path}: the stream ended before the answer was complete")

    async def _identity(self, request: Request) -> _Identity:
        """The seed of a request, and who sends it; the latter is empty for servers that would not know it."""
        key = request.agent if self._affinity == "agent" else request.session
        if not await self._asked_whether_hive():
            if self._replay == "distinct":
                raise ModelError(
                    f'{self.url} cannot draw without replacement, as replay="distinct" asks: only Hive\'s server can. '
                    "Start one with python -m hive.launch_server, or leave replay out"
                )
            headers = None if self._behind is None else routing_headers(key, {})
            return _Identity(sample_seed(request.seed, request.sample), {}, headers)
        tag: Json = {
            "agent": request.agent,
            "session": request.session,
            "state": request.state,
            "sample": request.sample,
            "replay": self._replay,
        }
        if self._tenant is not None:
            tag["tenant"] = self._tenant
        if self._replay == "distinct":
            # The server remembers for good what distinct samples of a prompt took: without a scope of its own, a run
            # would get what earlier ones left over, and the same run another time other answers.
            tag["scope"] = request.session
        # The server derives the seed of each sample from the base seed, and so may prepare the next one.
        headers = None if self._behind is None else routing_headers(key, tag)
        return _Identity(request.seed, {"custom_params": {"hive": tag}}, headers)

    async def _asked_whether_hive(self) -> bool:
        if self._is_hive is None:
            async with self._transport.connection().lock:
                if self._is_hive is None:
                    self._is_hive = await self._ask("GET", "/hive/agents", None) is not None
        return self._is_hive

    async def _model_named(self, name: str | None) -> _Served:
        """The model that a call asks for; the first one that the server lists when it asks for none.

        `ModelError` when an SGLang server has no model of this name, for it would answer with another one.
        """
        name = self._model if name is None else name
        if name not in self._served:
            async with self._transport.connection().lock:
                if name not in self._served:
                    self._served[name] = self._find(name, await self._ask("GET", "/v1/models", None))
        return self._served[name]

    def _find(self, name: str | None, listing: Json | None) -> _Served:
        cards = {str(card.get("id")): card for card in map(_dict, _dict(listing).get("data") or [])}
        sglang = any(card.get("owned_by") == "sglang" for card in cards.values())
        if name is None:
            # Servers of a single model take any name.
            return _Served(next(iter(cards), "default"), None, sglang)
        if not sglang:
            return _Served(name, None, False)
        if name in cards:
            base = cards[name].get("parent")
            return _Served(name, None, True) if base is None else _Served(f"{base}:{name}", name, True)
        base, _, adapter = name.partition(":")
        if base in cards and adapter in cards:
            return _Served(name, adapter, True)
        raise ModelError(f"model: {self.url} has no {name!r}; it has {', '.join(map(repr, cards))}")

    async def _prompt(self, session: str, messages: Messages) -> Prompt | None:
        """What a Hive server's chat template makes of a dialogue; None when it is no Hive server.

        Asked once per dialogue and session: calls that come meanwhile wait for the same answer.
        """
        if self._is_hive is False:
            return None
        known = self._prompts.get(session, messages)
        if known is not None:
            return known
        key = (session, messages)
        tasks = self._transport.connection().tasks
        if key not in tasks:
            tasks[key] = asyncio.ensure_future(self._render(session, messages))
            tasks[key].add_done_callback(lambda task: _settle(tasks.pop(key, task)))
        # Shielded: a call that is cancelled must not take away what others wait for.
        prompt: Prompt | None = await asyncio.shield(tasks[key])
        return prompt

    async def _render(self, session: str, messages: Messages) -> Prompt | None:
        prefix = self._prompts.prefix(session, messages)
        answer = await self._ask("POST", "/hive/render", _render_body(messages, prefix))
        self._is_hive = answer is not None
        if answer is None:
            return None
        prompt = _read_prompt(answer, prefix)
        self._prompts.add(session, messages, prompt)
        return prompt


def _settle(task: asyncio.Task[Any]) -> None:
    """Look at a task's error, which is nobody's when all that waited for it have gone."""
    if not task.cancelled():
        task.exception()


def _spelled(messages: Sequence[Message]) -> list[Json]:
    return [{"role": message.role, "content": message.content} for message in messages]


def _render_body(messages: Sequence[Message], prefix: list[int]) -> Json:
    body: Json = {"messages": _spelled(messages)}
    return {**body, "prefix_ids": prefix} if prefix else body


def _read_prompt(answer: Json, prefix: list[int]) -> Prompt:
    return Prompt(answer["text"], prefix[: answer["kept"]] + answer["ids"], answer["sampling_params"])


def _read_choice(answer: Json) -> Completion:
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices:
        raise ModelError(f"the server's answer holds no choice: {json.dumps(answer)[:200]}")
    choice = _dict(choices[0])
    text = _dict(choice["message"]).get("content") if "message" in choice else choice.get("text")
    used = _dict(answer.get("usage")).get("completion_tokens")
    # A model that stopped at once, or was cut off while thinking, leaves the content empty or null.
    return _completion(text or "", _dict(choice.get("meta_info")), used, choice.get("finish_reason"))


def _completion(text: Any, meta: Json, used: Any, finish: Any) -> Completion:
    if not isinstance(text, str):
        raise ModelError(f"the server's answer holds no text but {text!r}")
    hive = _dict(meta.get("hive"))
    generated = hive.get("tokens_generated", meta.get("completion_tokens", used))
    reason = finish.get("type") if isinstance(finish, dict) else finish
    return Completion(
        text,
        generated if isinstance(generated, int) else 0,
        hive.get("tokens_replayed", 0),
        None if reason is None else str(reason),
    )


def _dict(value: Any) -> Json:
    return value if isinstance(value, dict) else {}
