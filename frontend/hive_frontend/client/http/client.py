"""The client for servers that speak HTTP: Hive's own, stock SGLang, and OpenAI-compatible ones."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from hive_frontend.client.cached_message import CachedMessage
from hive_frontend.client.contract import (
    CallTimeout,
    Client,
    Completion,
    MessageCall,
    OnText,
    Request,
    check_limits,
)
from hive_frontend.client.http.answers import invalid_answer, read_generated
from hive_frontend.client.http.behind_router import Affinity, BehindRouter
from hive_frontend.client.http.generate_route import GenerateRoute
from hive_frontend.client.http.hive_generate import HiveGenerate
from hive_frontend.client.http.merging import Ask, Merger, waiting
from hive_frontend.client.http.message_routes import MessageKind, MessageRoutes, message_path
from hive_frontend.client.http.model_names import ModelNames
from hive_frontend.client.http.openai_routes import OpenAIRoutes
from hive_frontend.client.http.prompts import PromptCache, Rendering, read_prompt, render_body
from hive_frontend.client.http.tags import Tags
from hive_frontend.client.http.transport import Transport
from hive_frontend.client.json_text import Json
from hive_frontend.client.messages import Message
from hive_frontend.client.prices import Prices
from hive_frontend.client.spelling import fits, grammar_of, settings_of, spelled
from hive_frontend.errors import HiveError, ModelError
from hive_frontend.wire import HEADER_PREFIX, check_name, sample_seed

T = TypeVar("T")

_RENDER_S = 10.0
_REDRAWN = 2**32
"""Numbers of samples, above those of programs, of draws that take the place of invalid answers."""
_log = logging.getLogger(__name__)


class HttpClient(Client):
    """Talks to the server at `url`.

    A Hive server gets the tokens of a dialogue: those of earlier answers as the model wrote them, so that all of it
    is found in the server's caches again. It learns agent, session, state and sample number with every call,
    derives the seed of each sample itself, and tells how many tokens it replayed. Other servers are asked without
    these extras: stock SGLang through `/generate` and chat completions, OpenAI-compatible ones through chat
    completions and completions.

    `model` is the name of the model, or of a LoRA adapter, at the server (by default the first model that it
    lists). `timeout_s` bounds one call, its attempts and the pauses between them together. Transport errors and the
    statuses of busy or failing servers (429, 5xx) are tried `attempts` times in all, with back-off or as `Retry-After`
    says; anything else is tried once, and so is a stream of which a piece has come. A server that has answered before,
    and takes no connections now, is being restarted: it is waited for until `timeout_s`.

    Calls that ask for the same in the same moment, such as samples of one state, travel as one request, each with its
    own seed, tag, limits and errors. A request to OpenAI's endpoints has one seed, the first call's, and its answer one
    count of tokens, of which each call is charged an equal share; the prompt, which is read once, is on the bill of the
    first call. `merge=False` sends every call by itself.

    `extra_headers` go with every request; `extra_body` with those to OpenAI's endpoints, in place of fields so named.
    With `prices`, replies and totals say what they cost.

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
        self._model = model
        self._timeout_s = timeout_s
        self._attempts = attempts
        if tenant is not None:
            check_name("tenant", tenant)
        # Agents and sessions are a tenant's, too, and the requests about them have no body to say it in.
        extra = dict(extra_headers or {})
        headers = {f"{HEADER_PREFIX}tenant": tenant, **extra} if tenant is not None else extra
        self._behind = None if servers is None else BehindRouter(servers, api_key, headers)
        # Behind a router the tenant is named by what the router forwards, and must not be named twice.
        self._transport = Transport(url, api_key, headers if servers is None else extra)
        self._tags = Tags(self._transport.url, replay, tenant, None if servers is None else affinity)
        self._messages = MessageRoutes(self._transport, replay, prices)
        self._is_hive: bool | None = None
        """Whether the server has Hive's routes; None until it was asked for one."""
        self._has_generate = True
        self._has_hive_generate = servers is None
        """Whether one request may render and generate; routers do not forward it."""
        self._chat_only = False
        """Whether the chat endpoint does more with an answer than to hand it on, and must be asked for dialogues."""
        self._takes_lists = True
        """Whether `/generate` takes lists."""
        self._takes_n = True
        """Whether OpenAI's endpoints give several choices; until they refuse."""
        self._prompts = PromptCache()
        self._names = ModelNames(self._transport, model, lambda method, path: self._ask(method, path, None))
        self._rendering = Rendering(self._transport, self._prompts, self._ask)
        self._hive = HiveGenerate(self._transport, self._prompts, self._tags.of)
        self._generate = GenerateRoute(self._transport)
        self._openai = OpenAIRoutes(self._transport, extra_body or {})
        # Behind a router the tag of a request travels in headers, which say it of one call.
        self._merger = Merger(self._transport, self._serve) if merge and servers is None else None

    @property
    def url(self) -> str:
        """The server's address, without `/v1`."""
        return self._transport.url

    async def complete(self, request: Request, on_text: OnText | None = None) -> Completion:
        done = await self._limited(request, lambda attempts: self._draw(request, attempts, on_text))
        return done if self._prices is None else self._prices.charge(done)

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
            body = render_body(messages, [])
            ask = self._transport.send_blocking if self._behind is None else self._behind.ask_blocking
            answer = ask("/hive/render", body, timeout_s=_RENDER_S)
        if answer is None:
            raise ModelError(
                f"{self.url} is no Hive server, and only a Hive server shows the prompt that its chat template "
                "makes of a dialogue; start one with python -m hive.launch_server"
            )
        prompt = read_prompt(answer, [])
        self._prompts.add("", tuple(messages), prompt)
        return prompt.text

    async def register(self, agent: str, session: str) -> None:
        if self._is_hive is not False:
            body = {"name": agent, "session": session}
            try:
                self._is_hive = await self._ask("POST", "/hive/agents", body, of_all=True) is not None
            except ModelError as error:
                # What another server makes of a route that it does not know says nothing about the run.
                if error.status is None or self._behind is not None or await self._asked_whether_hive():
                    raise

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

    async def _draw(self, request: Request, attempts: int, on_text: OnText | None) -> Completion:
        ask = Ask(request, on_text)
        done = await self._answer(ask, attempts)
        if ask.unchecked and not fits(request.sampling, done.text, done.finish_reason):
            # Only a call that says so is made again, and what was heard cannot be taken back.
            left = 1 if on_text is not None or request.attempts is None else request.attempts
            for attempt in range(1, left):
                seed = sample_seed(request.seed, _REDRAWN + attempt)
                done = await self._answer(Ask(request._replace(seed=seed), None), attempts)
                if fits(request.sampling, done.text, done.finish_reason):
                    return done
            raise invalid_answer(self.url, request.sampling, done.text)
        return done

    async def _answer(self, ask: Ask, attempts: int) -> Completion:
        if self._merger is None:
            return await ask.alone(self._serve)
        return await self._merger.ask(ask, attempts)

    async def _serve(self, asks: Sequence[Ask]) -> None:
        """Get the answers to calls that ask for the same."""
        request = asks[0].request
        attempts = self._attempts if request.attempts is None else request.attempts
        if self._has_hive_generate and not (request.prompt is None and self._chat_only):
            if request.prompt is not None:
                await self._asked_whether_hive()
            if self._is_hive is not False and await self._serve_hive(asks, attempts):
                return
        if len(asks) == 1:
            await self._serve_alone(asks[0], attempts)
            return
        try:
            await self._serve_together(asks, attempts)
        except ModelError as error:
            self._part(asks, error)
        for ask in waiting(asks):
            ask.settle(None)

    async def _serve_hive(self, asks: Sequence[Ask], attempts: int) -> bool:
        """Ask a Hive server in one request; False if it must be asked otherwise."""
        request = asks[0].request
        adapter = await self._names.adapter(request.model)
        try:
            self._has_hive_generate = await self._hive.draw(asks, adapter, attempts)
        except ModelError as error:
            if self._is_hive is None and error.status is not None and not await self._asked_whether_hive():
                return False
            if error.status == 409 and request.prompt is None:
                self._is_hive = self._chat_only = True
                return False
            self._part(asks, error)
        self._is_hive = self._has_hive_generate or self._is_hive
        return self._has_hive_generate

    @staticmethod
    def _part(asks: Sequence[Ask], error: ModelError) -> None:
        """Have calls that were refused together be made alone, so that none fails for what another one asks."""
        if len(asks) == 1 or error.status is None:
            raise error
        for ask in waiting(asks):
            ask.refused = error.status in (400, 422)
            ask.settle(error if ask.begun else None)

    async def _serve_together(self, asks: Sequence[Ask], attempts: int) -> None:
        """Ask another server than Hive's in one request, where that is the same as asking one by one. Calls that it
        leaves waiting are to be made alone."""
        if await self._asked_whether_hive():
            return
        request = asks[0].request
        if request.prompt is not None and self._has_generate and self._takes_lists:
            self._tags.check_replay()
            self._has_generate = await self._generate.draw_together(
                asks,
                request.prompt,
                self._generate_settings(request, settings_of(request.sampling)),
                await self._names.adapter(request.model),
                [sample_seed(ask.request.seed, ask.request.sample) for ask in asks],
                attempts,
            )
            self._takes_lists = not waiting(asks)
            if self._has_generate:
                return
        # Some servers refuse several answers where all would be the same.
        if (
            self._takes_n
            and request.sampling.temperature != 0
            and await self._names.draws_differ(request.model)
        ):
            await self._serve_openai(asks, attempts)
            self._takes_n = not waiting(asks)

    async def _serve_alone(self, ask: Ask, attempts: int) -> None:
        request = ask.request
        if request.prompt is None:
            prompt = None
            if self._is_hive is not False and not self._chat_only:
                prompt = await self._rendering.prompt(request.session, request.messages)
                self._is_hive = prompt is not None
            if prompt is not None and prompt.sampling_params is not None:
                settings = {**prompt.sampling_params, **settings_of(request.sampling)}
                if stops := [*prompt.sampling_params.get("stop", ()), *request.sampling.stop]:
                    settings["stop"] = stops
                if not await self._serve_generate(ask, {"input_ids": list(prompt.ids)}, settings, attempts):
                    raise ModelError(f"{self.url} is a Hive server without /generate")
                return
        elif self._has_generate:
            self._has_generate = await self._serve_generate(
                ask, {"text": request.prompt}, settings_of(request.sampling), attempts
            )
            if self._has_generate:
                return
        await self._serve_openai([ask], attempts)
        if ask.refused:
            self._takes_n = False

    async def _serve_generate(self, ask: Ask, prompt: Json, settings: Json, attempts: int) -> bool:
        """Ask SGLang's own endpoint; False if the server has none."""
        request = ask.request
        identity = self._tags.identity(request, await self._asked_whether_hive())
        settings = self._generate_settings(request, settings)
        settings |= {"sampling_seed": identity.seed, **identity.fields}
        body = {**prompt, "sampling_params": settings}
        adapter = await self._names.adapter(request.model)
        if adapter is not None:
            body["lora_path"] = adapter
        if ask.text is not None:
            ask.text.stops = settings.get("stop", ())
        answer = await self._generate.draw(ask, body, attempts, identity.headers)
        if answer is None:
            return False
        done = read_generated(answer, prompt.get("input_ids", ()))
        if request.prompt is None and done.output_ids:
            self._prompts.add_answer(request.session, request.messages, done.text, done.output_ids)
        ask.settle(done)
        return True

    @staticmethod
    def _generate_settings(request: Request, settings: Json) -> Json:
        return {**settings, "max_new_tokens": request.sampling.max_tokens, **grammar_of(request.sampling)}

    async def _serve_openai(self, asks: Sequence[Ask], attempts: int) -> None:
        request = asks[0].request
        sampling = request.sampling
        for ask in asks:
            ask.unchecked = True
        served = await self._names.named(request.model)
        identity = self._tags.identity(request, await self._asked_whether_hive())
        chat = request.prompt is None
        prompt: Json = {"messages": spelled(request.messages)} if chat else {"prompt": request.prompt}
        fields = {"model": served.name, **settings_of(sampling), "seed": identity.seed, **identity.fields}
        await self._openai.draw(asks, {**prompt, **fields}, served, attempts, identity.headers)

    async def _make(
        self, kind: MessageKind, call: MessageCall, attempts: int, on_text: OnText | None
    ) -> CachedMessage:
        """Have the server make a message."""
        if self._behind is not None:
            raise HiveError(
                f"{kind}: messages are kept by one server, and {self.url} is a router before several; give the "
                "HttpClient the URL of one of them"
            )
        adapter = await self._names.adapter(call.request.model)
        return await self._messages.make(kind, call, adapter, attempts, on_text)

    async def _asked_whether_hive(self) -> bool:
        if self._is_hive is None:
            async with self._transport.connection().lock:
                if self._is_hive is None:
                    try:
                        self._is_hive = await self._ask("GET", "/hive/agents", None) is not None
                    except ModelError as error:
                        if error.status is None or self._behind is not None:
                            raise
                        # A gateway may answer what it does not know with a page, a redirection, 401 or 500.
                        _log.info("%s; taken for a server that is not Hive's", error)
                        self._is_hive = False
        return self._is_hive


def as_client(model: Client | str) -> Client:
    """The client that `model` is or, as the URL of a server, stands for."""
    if isinstance(model, str):
        return HttpClient(model)
    if isinstance(model, Client):
        return model
    raise TypeError(
        f'model must be a Client or the URL of a server, such as "http://localhost:30000", not '
        f"{type(model).__name__}"
    )
