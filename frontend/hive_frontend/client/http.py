"""The client for servers that speak HTTP: Hive's own, stock SGLang, and OpenAI-compatible ones."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import httpx
import tenacity

from hive_frontend.client.base import Client, Completion, Request, Sampling
from hive_frontend.errors import ModelError
from hive_frontend.identity import check_label

_TRANSIENT_STATUS = frozenset({502, 503, 504})
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class _TransientStatus(Exception):
    """The server, or a proxy before it, is momentarily unable to answer."""

    def __init__(self, response: httpx.Response) -> None:
        super().__init__(f"HTTP {response.status_code}")
        self.response = response


def _is_transient(error: BaseException) -> bool:
    # A read timeout is no reason to try again: the server is at work, and would do all of it twice.
    if isinstance(error, (httpx.ReadTimeout, httpx.UnsupportedProtocol, httpx.LocalProtocolError)):
        return False
    return isinstance(error, (httpx.TransportError, _TransientStatus))


class HttpClient(Client):
    """Talks to the server at `url`.

    A Hive server learns agent, session, state and sample number with every call, and tells how many tokens
    it replayed. Other servers are asked without these extras: stock SGLang through `/generate` and chat
    completions, OpenAI-compatible ones through chat completions and completions.

    `model` is the model's name at the server (by default the first one that the server lists); `timeout_s`
    bounds one call; transport errors and the statuses 502, 503 and 504 are tried `attempts` times in all,
    with back-off, anything else once. `replay="off"` asks a Hive server to decode every token anew.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        model: str | None = None,
        timeout_s: float = 600.0,
        attempts: int = 5,
        replay: Literal["stepwise", "off"] = "stepwise",
        tenant: str | None = None,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f'the URL of a server looks like "http://localhost:30000", not {url!r}')
        if replay not in ("stepwise", "off"):
            raise ValueError(f'replay must be "stepwise" or "off", not {replay!r}')
        if attempts < 1:
            raise ValueError(f"attempts must be at least 1, not {attempts}")
        # Users of other clients have the habit of giving the API's base URL.
        self.url = url.rstrip("/").removesuffix("/v1")
        self._api_key = api_key
        self._model = model
        self._timeout_s = timeout_s
        self._attempts = attempts
        self._replay = replay
        self._tenant = None if tenant is None else check_label("tenant", tenant)
        # A proxy set in the environment cannot reach a server that listens on this machine's loopback.
        self._use_proxies = parts.hostname not in _LOOPBACK
        self._has_hive_routes = True
        self._has_generate = True
        # Connections belong to an event loop; one client may serve several run() calls, each with its own.
        self._connections: WeakKeyDictionary[asyncio.AbstractEventLoop, _Connection] = WeakKeyDictionary()

    async def complete(self, request: Request) -> Completion:
        if request.prompt is None:
            return _read_choice(await self._chat(request))
        if self._has_generate:
            answer = await self._send("POST", "/generate", self._generate_body(request), missing_ok=True)
            if answer is not None:
                return _read_generate(answer)
            self._has_generate = False
        return _read_choice(await self._post("/v1/completions", await self._completions_body(request)))

    async def register(self, agent: str, session: str) -> None:
        body = {"name": agent, "session": session}
        if self._has_hive_routes and await self._send("POST", "/hive/agents", body, missing_ok=True) is None:
            self._has_hive_routes = False

    async def end_session(self, session: str) -> None:
        if self._has_hive_routes:
            await self._send("DELETE", f"/hive/sessions/{session}", None, missing_ok=True)

    async def aclose(self) -> None:
        connection = self._connections.pop(asyncio.get_running_loop(), None)
        if connection is not None:
            await connection.http.aclose()

    # Bodies

    def _identity(self, request: Request) -> dict[str, Any]:
        """The `custom_params` of a request; empty for servers that would not know what to do with them."""
        if not self._has_hive_routes:
            return {}
        hive: dict[str, str | int] = {
            "agent": request.agent,
            "session": request.session,
            "state": request.state,
            "sample": request.sample,
            "replay": self._replay,
        }
        if self._tenant is not None:
            hive["tenant"] = self._tenant
        return {"custom_params": {"hive": hive}}

    def _generate_body(self, request: Request) -> dict[str, Any]:
        sampling = request.sampling
        return {
            "text": request.prompt,
            "sampling_params": {
                "max_new_tokens": sampling.max_tokens,
                **_common_settings(sampling),
                **({"regex": sampling.grammar} if sampling.grammar is not None else {}),
                **({"json_schema": sampling.json_schema} if sampling.json_schema is not None else {}),
                "sampling_seed": request.seed,
                **self._identity(request),
            },
        }

    async def _completions_body(self, request: Request) -> dict[str, Any]:
        return {"prompt": request.prompt, **await self._openai_settings(request)}

    async def _chat(self, request: Request) -> dict[str, Any]:
        messages = [{"role": message.role, "content": message.content} for message in request.messages]
        body = {"messages": messages, **await self._openai_settings(request)}
        return await self._post("/v1/chat/completions", body)

    async def _openai_settings(self, request: Request) -> dict[str, Any]:
        sampling = request.sampling
        settings: dict[str, Any] = {
            "model": await self._model_name(),
            "max_tokens": sampling.max_tokens,
            **_common_settings(sampling),
            "seed": request.seed,
            **self._identity(request),
        }
        if sampling.grammar is not None:
            settings["regex"] = sampling.grammar
        if sampling.json_schema is not None:
            schema = {"name": "answer", "schema": json.loads(sampling.json_schema)}
            settings["response_format"] = {"type": "json_schema", "json_schema": schema}
        return settings

    async def _model_name(self) -> str:
        async with self._connection().naming:
            if self._model is None:
                listing = await self._send("GET", "/v1/models", None, missing_ok=True)
                models = _dict(listing).get("data")
                # Servers of a single model take any name.
                self._model = str(models[0]["id"]) if models else "default"
        return self._model

    # Transport

    async def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = await self._send("POST", path, body, missing_ok=False)
        assert answer is not None
        return answer

    async def _send(
        self, method: str, path: str, body: dict[str, Any] | None, *, missing_ok: bool
    ) -> dict[str, Any] | None:
        """The server's answer; None for a route that it does not have, if that may be."""
        try:
            response = await self._send_patiently(method, path, body)
        except _TransientStatus as error:
            response = error.response
        except httpx.HTTPError as error:
            detail = str(error) or type(error).__name__
            raise ModelError(f"{method} {self.url}{path}: {detail}") from error
        if missing_ok and response.status_code in (404, 405):
            return None
        if response.is_error:
            raise ModelError(
                f"{method} {self.url}{path}: the server answered {response.status_code}: "
                f"{_error_message(response)}",
                status=response.status_code,
            )
        try:
            answer = response.json() if response.content else {}
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise ModelError(
                f"{method} {self.url}{path}: the answer is no JSON object: {response.text[:200]!r}",
                status=response.status_code,
            )
        return answer

    async def _send_patiently(self, method: str, path: str, body: dict[str, Any] | None) -> httpx.Response:
        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(_is_transient),
            wait=tenacity.wait_random_exponential(multiplier=0.4, max=10.0),
            stop=tenacity.stop_after_attempt(self._attempts),
            reraise=True,
        )

        async def attempt() -> httpx.Response:
            response = await self._connection().http.request(method, path, json=body)
            if response.status_code in _TRANSIENT_STATUS:
                raise _TransientStatus(response)
            return response

        return await retrying(attempt)

    def _connection(self) -> _Connection:
        loop = asyncio.get_running_loop()
        if loop not in self._connections:
            http = httpx.AsyncClient(
                base_url=self.url,
                timeout=httpx.Timeout(self._timeout_s, connect=10.0, pool=None),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=256),
                headers={"Authorization": f"Bearer {self._api_key}"} if self._api_key else None,
                trust_env=self._use_proxies,
            )
            self._connections[loop] = _Connection(http)
        return self._connections[loop]


class _Connection:
    """What a client holds per event loop."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http
        self.naming = asyncio.Lock()
        """Held while the model's name is looked up, which concurrent calls need only once."""


def _common_settings(sampling: Sampling) -> dict[str, Any]:
    """The settings that all endpoints spell alike, without those left to the server."""
    settings = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "stop": list(sampling.stop) or None,
    }
    return {name: value for name, value in settings.items() if value is not None}


def _read_generate(answer: dict[str, Any]) -> Completion:
    meta = _dict(answer.get("meta_info"))
    return _completion(answer.get("text"), meta, meta.get("completion_tokens"), meta.get("finish_reason"))


def _read_choice(answer: dict[str, Any]) -> Completion:
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices:
        raise ModelError(f"the server's answer holds no choice: {json.dumps(answer)[:200]}")
    choice = _dict(choices[0])
    text = _dict(choice["message"]).get("content") if "message" in choice else choice.get("text")
    used = _dict(answer.get("usage")).get("completion_tokens")
    # A model that stopped at once, or was cut off while thinking, leaves the content empty or null.
    return _completion(text or "", _dict(choice.get("meta_info")), used, choice.get("finish_reason"))


def _completion(text: Any, meta: dict[str, Any], used: Any, finish: Any) -> Completion:
    if not isinstance(text, str):
        raise ModelError(f"the server's answer holds no text but {text!r}")
    hive = _dict(meta.get("hive"))
    generated = hive.get("tokens_generated", meta.get("completion_tokens", used))
    reason = finish.get("type") if isinstance(finish, dict) else finish
    return Completion(
        text=text,
        tokens_generated=generated if isinstance(generated, int) else 0,
        tokens_replayed=hive.get("tokens_replayed", 0),
        finish_reason=None if reason is None else str(reason),
    )


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _error_message(response: httpx.Response) -> str:
    """What the server says is wrong, out of the several shapes in which servers say it."""
    try:
        answer = response.json()
    except ValueError:
        return response.text.strip()[:500] or "(no message)"
    if isinstance(answer, dict):
        answer = answer.get("error", answer.get("detail", answer))
    if isinstance(answer, dict):
        answer = answer.get("message", answer)
    return answer if isinstance(answer, str) else json.dumps(answer)[:500]
