"""The client for HTTP servers: Hive, stock SGLang, and OpenAI-compatible servers."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from hive_frontend.client.body_fields import grammar_fields, matches_grammar, sampling_fields
from hive_frontend.client.cached_message import CachedMessage
from hive_frontend.client.contract import Client, Completion, MessageCall, OnText, Request, check_limits
from hive_frontend.client.http.answers import invalid_answer, read_generated
from hive_frontend.client.http.behind_router import Affinity, BehindRouter
from hive_frontend.client.http.connection import answering_within
from hive_frontend.client.http.control_requests import ControlRequests
from hive_frontend.client.http.generate_route import GenerateRoute
from hive_frontend.client.http.hive_generate import HiveGenerate
from hive_frontend.client.http.merging import Merger, PendingCall, waiting
from hive_frontend.client.http.message_routes import MessageKind, MessageRoutes, message_path
from hive_frontend.client.http.model_names import ModelNames
from hive_frontend.client.http.openai_routes import OpenAIRoutes
from hive_frontend.client.http.prompts import PromptCache, Rendering, read_prompt, render_body
from hive_frontend.client.http.tags import Tags
from hive_frontend.client.http.transport import Transport
from hive_frontend.client.json_text import Json
from hive_frontend.client.messages import Message
from hive_frontend.client.prices import Prices
from hive_frontend.client.tool_text import complete_as_text, uses_tools, without_tools
from hive_frontend.errors import HiveError, ModelError
from hive_frontend.wire import HEADER_PREFIX, SessionHint, check_name, sample_seed

T = TypeVar("T")

_RENDER_S = 10.0
_REDRAW_OFFSET = 2**32
"""Sample numbers from here on, above those of programs, are used for redraws of invalid answers."""
_OF_ONE_CALL = frozenset({400, 413, 422})
"""Statuses with which a Hive server refuses a request because of one of its calls, or because of their number."""
_log = logging.getLogger(__name__)


class HttpClient(Client):
    """Calls the model server at `url`.

    A Hive server receives dialogues as tokens, with earlier answers exactly as the model wrote them, so that all of a
    dialogue hits its caches. Every call carries agent, session, state and sample number; the server derives the seed of
    each sample itself, and reports how many tokens it replayed. Other servers receive requests without these
    extensions: stock SGLang through `/generate` and chat completions, OpenAI-compatible servers through chat
    completions and completions.

    `model` is the name of the model, or of a LoRA adapter, at the server; the default is the first model that it
    lists. `timeout_s` limits one call, including its retries and the pauses between them. Transport errors and the
    statuses of busy or failing servers (429, 5xx) are tried `attempts` times in all, with back-off or as `Retry-After`
    says. Other errors are not retried, nor is a stream after its first piece. A server that has answered before and
    refuses connections now is assumed to be restarting: the client waits for it until `timeout_s`.

    Concurrent calls are merged into one HTTP request: at a Hive server all that are made in one turn of the event
    loop, elsewhere those that differ only in their seeds and tags, such as samples of one state. Each keeps its own
    seed, tag, limits and errors. A request to OpenAI's endpoints has one seed, that of the first call, and one token
    count, of which each call is charged an equal share; the prompt is charged to the first call. `merge=False` sends
    every call separately.

    `extra_headers` are sent with every request. `extra_body` is merged into bodies for OpenAI's endpoints, and
    overrides fields of the same name. With `prices`, replies and totals have costs.

    `replay="off"` tells a Hive server to decode every token instead of replaying. `replay="distinct"` tells it to draw
    without replacement: within a session, no two answers to the same prompt under the same settings have the same
    tokens, until all are used up. Other servers cannot do that, and a call raises `ModelError`.

    If `url` is an `sglang-router`, `servers` are the URLs of the Hive servers behind it. The router forwards
    generation requests; all other requests go to `servers` directly, some of which may be down. Requests of a session
    go to the same server while it is up, or, with `affinity="agent"`, requests of an agent in all sessions.
    """

    takes_tools = True

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
        merge: bool = True,
        extra_body: Mapping[str, Any] | None = None,
        extra_headers: Mapping[str, str] | None = None,
        prices: Prices | None = None,
    ) -> None:
        if replay not in ("stepwise", "distinct", "off"):
            raise ValueError(f'replay must be "stepwise", "distinct" or "off", not {replay!r}')
        if affinity not in ("session", "agent"):
            raise ValueError(f'affinity must be "session" or "agent", not {affinity!r}')
        if prices is not None and not isinstance(prices, Prices):
            raise TypeError(f"prices must be Prices(prompt=..., output=...), not {prices!r}")
        check_limits(timeout_s, attempts)
        self._prices = prices
        self.model = model
        self._timeout_s = timeout_s
        self._attempts = attempts
        if tenant is not None:
            check_name("tenant", tenant)
        # Agents and sessions belong to a tenant, too, and requests about them have no tag to name it.
        extra = dict(extra_headers or {})
        headers = {f"{HEADER_PREFIX}tenant": tenant, **extra} if tenant is not None else extra
        self._behind = None if servers is None else BehindRouter(servers, api_key, headers)
        # Behind a router the routed headers name the tenant, and it must not be named twice.
        self._transport = Transport(url, api_key, headers if servers is None else extra)
        self._tags = Tags(self._transport.url, replay, tenant, None if servers is None else affinity)
        self._messages = MessageRoutes(self._transport, replay, prices)
        self._is_hive: bool | None = None
        """Whether the server has Hive's routes; None until known."""
        self._has_generate = True
        self._has_hive_generate = servers is None
        """Whether one request can render and generate; routers do not forward it."""
        self._chat_only = False
        """Whether the chat endpoint post-processes answers, so that it must be used for dialogues."""
        self._takes_lists = True
        """Whether `/generate` accepts lists; False once it has refused one."""
        self._takes_n = True
        """Whether OpenAI's endpoints accept `n` choices; False once they have refused."""
        self._prompts = PromptCache()
        self._control = ControlRequests(self._transport, self._behind, timeout_s, attempts)
        self._request = self._control.send
        self._names = ModelNames(
            self._transport, model, lambda method, path: self._request(method, path, None)
        )
        self._rendering = Rendering(self._transport, self._prompts, self._request)
        self._hive = HiveGenerate(self._transport, self._prompts, self._tags.of)
        self._generate = GenerateRoute(self._transport)
        self._openai = OpenAIRoutes(self._transport, extra_body or {})
        # Behind a router the tag of a request is sent in headers, which can name one call only.
        merges = merge and servers is None
        self._merger = Merger(self._transport, self._serve, self._takes_prompts) if merges else None

    @property
    def url(self) -> str:
        """The server's address, without `/v1`."""
        return self._transport.url

    @property
    def provider(self) -> str:
        return "hive" if self._is_hive else "sglang" if self._has_generate else "openai"

    async def complete(self, request: Request, on_text: OnText | None = None) -> Completion:
        if not uses_tools(request) or await self._names.parses_tools(request):
            try:
                done = await self._with_timeout(
                    request, lambda attempts: self._draw(request, attempts, on_text)
                )
                return done if self._prices is None else self._prices.charge(done)
            except ModelError as error:
                if not self._names.refuses_tools(request, error):
                    raise
        return await complete_as_text(self, request, on_text)

    async def prefill(self, call: MessageCall) -> CachedMessage:
        return await self._with_timeout(
            call.request, lambda attempts: self._make_message("prefill", call, attempts, None)
        )

    async def decode(self, call: MessageCall, on_text: OnText | None = None) -> CachedMessage:
        return await self._with_timeout(
            call.request, lambda attempts: self._make_message("decode", call, attempts, on_text)
        )

    async def delete_message(self, message: CachedMessage) -> None:
        await self._request("DELETE", message_path(message), None, wait_for_restart=False)

    async def _with_timeout(self, request: Request, work: Callable[[int], Awaitable[T]]) -> T:
        """Run `work` within the call's timeout; `work` gets the number of attempts."""
        timeout_s = self._timeout_s if request.timeout_s is None else request.timeout_s
        attempts = self._attempts if request.attempts is None else request.attempts
        check_limits(timeout_s, attempts)
        async with answering_within(timeout_s, self.url):
            return await work(attempts)

    def render(self, messages: Sequence[Message]) -> str:
        messages = tuple(without_tools(messages))
        known = self._prompts.get("", messages)
        if known is not None:
            return known.text
        answer = None
        if self._is_hive is not False:
            send = (self._behind or self._transport).send_blocking
            answer = send("/hive/render", render_body(messages, []), timeout_s=_RENDER_S)
        if answer is None:
            raise ModelError(
                f"{self.url} is not a Hive server, and only a Hive server can render a dialogue with its chat "
                "template; start one with python -m hive.launch_server"
            )
        prompt = read_prompt(answer, [])
        self._prompts.add("", messages, prompt)
        return prompt.text

    async def register(self, agent: str, session: str) -> None:
        if self._is_hive is not False:
            body = {"name": agent, "session": session}
            try:
                self._is_hive = await self._request("POST", "/hive/agents", body, to_all=True) is not None
            except ModelError as error:
                # Another server's error for a route that it does not know must not end the run.
                if error.status is None or self._behind is not None or await self._detect_hive():
                    raise

    async def end_session(self, session: str) -> None:
        self._prompts.forget(session)
        if self._is_hive:
            # A server that was restarted meanwhile does not have the session.
            await self._request(
                "DELETE", f"/hive/sessions/{session}", None, to_all=True, wait_for_restart=False
            )

    async def pause_session(self, session: str) -> None:
        if self._is_hive:
            path, body = f"/hive/sessions/{session}/hints", {"expects": {"event": "human"}}
            await self._request("POST", path, body, to_all=True, wait_for_restart=False)

    def hint(self, hint: SessionHint) -> None:
        if self._is_hive:
            self._control.hint(hint)

    @property
    def hints_lost(self) -> int:
        """Hints that did not reach the server; nothing else depends on them."""
        return self._control.hints_lost

    async def aclose(self) -> None:
        self._control.drop_hints()
        await self._transport.aclose()
        if self._behind is not None:
            await self._behind.aclose()

    # Calls

    async def _draw(self, request: Request, attempts: int, on_text: OnText | None) -> Completion:
        call = PendingCall(request, on_text)
        done = await self._answer(call, attempts)
        if call.unchecked and not matches_grammar(request.sampling, done.text, done.finish_reason):
            # Only a call with `retries` is made again, and a stream cannot be: its text has been delivered.
            left = 1 if on_text is not None or request.attempts is None else request.attempts
            for attempt in range(1, left):
                seed = sample_seed(request.seed, _REDRAW_OFFSET + attempt)
                done = await self._answer(PendingCall(request._replace(seed=seed), None), attempts)
                if matches_grammar(request.sampling, done.text, done.finish_reason):
                    return done
            raise invalid_answer(self.url, request.sampling, done.text)
        return done

    async def _answer(self, call: PendingCall, attempts: int) -> Completion:
        if self._merger is None:
            return await call.alone(self._serve)
        return await self._merger.answer(call, attempts)

    def _takes_prompts(self) -> bool:
        """Return whether one request may have several prompts."""
        return bool(self._is_hive) and self._has_hive_generate and not self._chat_only

    async def _serve(self, calls: Sequence[PendingCall]) -> None:
        """Send calls, and settle them. Unless the server takes several prompts, they differ only in seed and tag."""
        request = calls[0].request
        attempts = self._attempts if request.attempts is None else request.attempts
        chat = request.prompt is None and (self._chat_only or calls[0].chat)
        if self._has_hive_generate and not chat:
            if request.prompt is not None:
                await self._detect_hive()
            if self._is_hive is not False and await self._serve_hive(calls, attempts):
                return
        if len(calls) == 1:
            await self._serve_alone(calls[0], attempts)
            return
        if any(call.prompt_key != calls[0].prompt_key for call in calls):
            self._send_separately(calls)
            return
        try:
            await self._serve_batch(calls, attempts)
        except ModelError as error:
            self._retry_separately(calls, error)
        self._send_separately(calls)

    async def _serve_hive(self, calls: Sequence[PendingCall], attempts: int) -> bool:
        """Send the calls to a Hive server in one request; False if other routes must be used."""
        models = {call.request.model for call in calls}
        try:
            adapters = {model: await self._names.adapter(model) for model in models}
        except ModelError:
            if len(models) == 1:
                raise
            # Only the calls of one model have this error.
            self._send_separately(calls)
            return True
        try:
            self._has_hive_generate = await self._hive.draw(calls, adapters, attempts)
        except ModelError as error:
            if self._is_hive is None and error.status is not None and not await self._detect_hive():
                return False
            if error.status == 409 and any(call.request.prompt is None for call in calls):
                self._is_hive = self._chat_only = True
                return False
            if error.status not in _OF_ONE_CALL:
                raise
            self._retry_separately(calls, error)
        self._is_hive = self._has_hive_generate or self._is_hive
        return self._has_hive_generate

    @staticmethod
    def _send_separately(calls: Sequence[PendingCall]) -> None:
        for call in waiting(calls):
            call.settle(None)

    @staticmethod
    def _retry_separately(calls: Sequence[PendingCall], error: ModelError) -> None:
        """Have calls that were refused together retried separately, so that none fails because of another one."""
        if len(calls) == 1 or error.status is None:
            raise error
        for call in waiting(calls):
            call.refused = error.status in (400, 422)
            call.settle(error if call.started else None)

    async def _serve_batch(self, calls: Sequence[PendingCall], attempts: int) -> None:
        """Send the calls to a server other than Hive in one request, if the answers are equivalent to those of separate
        requests. Calls that are still waiting afterwards must be sent separately."""
        if await self._detect_hive():
            return
        request = calls[0].request
        if request.prompt is not None and self._has_generate and self._takes_lists:
            self._tags.check_replay()
            self._has_generate = await self._generate.draw_batch(
                calls,
                request.prompt,
                self._generate_settings(request, sampling_fields(request.sampling)),
                await self._names.adapter(request.model),
                [sample_seed(call.request.seed, call.request.sample) for call in calls],
                attempts,
            )
            self._takes_lists = not waiting(calls)
            if self._has_generate:
                return
        # Some servers refuse several choices if all would be the same.
        if (
            self._takes_n
            and request.sampling.temperature != 0
            and await self._names.draws_differ(request.model)
        ):
            await self._serve_openai(calls, attempts)
            self._takes_n = not waiting(calls)

    async def _serve_alone(self, call: PendingCall, attempts: int) -> None:
        request = call.request
        if request.prompt is None:
            prompt = None
            if self._is_hive is not False and not self._chat_only and not call.chat:
                prompt = await self._rendering.prompt(request.session, request.messages)
                self._is_hive = prompt is not None
            if prompt is not None and prompt.sampling_params is not None:
                settings = {**prompt.sampling_params, **sampling_fields(request.sampling)}
                if stops := [*prompt.sampling_params.get("stop", ()), *request.sampling.stop]:
                    settings["stop"] = stops
                if not await self._serve_generate(call, {"input_ids": list(prompt.ids)}, settings, attempts):
                    raise ModelError(
                        f"{self.url} is a Hive server without /generate: start it with python -m hive.launch_server"
                    )
                return
        elif self._has_generate:
            self._has_generate = await self._serve_generate(
                call, {"text": request.prompt}, sampling_fields(request.sampling), attempts
            )
            if self._has_generate:
                return
        await self._serve_openai([call], attempts)
        if call.refused:
            self._takes_n = False

    async def _serve_generate(self, call: PendingCall, prompt: Json, settings: Json, attempts: int) -> bool:
        """Send the call to SGLang's `/generate`; False if the server does not have it."""
        request = call.request
        identity = self._tags.identity(request, await self._detect_hive())
        settings = self._generate_settings(request, settings)
        settings |= {"sampling_seed": identity.seed, **identity.fields}
        body = {**prompt, "sampling_params": settings}
        adapter = await self._names.adapter(request.model)
        if adapter is not None:
            body["lora_path"] = adapter
        if call.text is not None:
            call.text.stops = settings.get("stop", ())
        answer = await self._generate.draw(call, body, attempts, identity.headers)
        if answer is None:
            return False
        done = read_generated(answer, prompt.get("input_ids", ()))
        if request.prompt is None and done.output_ids:
            self._prompts.add_answer(request.session, request.messages, done.text, done.output_ids)
        call.settle(done)
        return True

    @staticmethod
    def _generate_settings(request: Request, settings: Json) -> Json:
        return {**settings, "max_new_tokens": request.sampling.max_tokens, **grammar_fields(request.sampling)}

    async def _serve_openai(self, calls: Sequence[PendingCall], attempts: int) -> None:
        request = calls[0].request
        identity = self._tags.identity(request, await self._detect_hive())
        await self._openai.draw(calls, identity, await self._names.named(request.model), attempts)

    async def _make_message(
        self, kind: MessageKind, call: MessageCall, attempts: int, on_text: OnText | None
    ) -> CachedMessage:
        """Make a message at the server."""
        if self._behind is not None:
            raise HiveError(
                f"{kind}: a message is kept by one server, and {self.url} is a router in front of several; give the "
                "HttpClient the URL of one of them"
            )
        adapter = await self._names.adapter(call.request.model)
        return await self._messages.make(kind, call, adapter, attempts, on_text)

    async def _detect_hive(self) -> bool:
        if self._is_hive is None:
            async with self._transport.connection().lock:
                if self._is_hive is None:
                    try:
                        self._is_hive = await self._request("GET", "/hive/agents", None) is not None
                    except ModelError as error:
                        if error.status is None or self._behind is not None:
                            raise
                        # A gateway may answer an unknown route with a page, a redirection, 401 or 500.
                        _log.info("%s; assuming that the server is not a Hive server", error)
                        self._is_hive = False
        return self._is_hive


def as_client(model: Client | str) -> Client:
    """Return `model` if it is a client, or a new client if it is the URL of a server."""
    if isinstance(model, str):
        return HttpClient(model)
    if isinstance(model, Client):
        return model
    raise TypeError(
        f'model must be a Client or the URL of a server, such as "http://localhost:30000", not '
        f"{type(model).__name__}"
    )
