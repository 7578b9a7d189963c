"""The models and adapters of a server, and their names in its routes."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from hive_frontend.client.body_fields import Kind
from hive_frontend.client.contract import Request
from hive_frontend.client.http.answers import as_dict
from hive_frontend.client.http.transport import Transport
from hive_frontend.client.json_text import Json
from hive_frontend.client.tool_text import uses_tools
from hive_frontend.errors import ModelError

_log = logging.getLogger(__name__)
_OWNERS: Mapping[str, Kind] = {
    "sglang": "sglang",
    "vllm": "vllm",
    "openai": "openai",
    "openai-internal": "openai",
    "system": "openai",
}


class Served(NamedTuple):
    """A model as the server knows it."""

    name: str
    """Value of `model` in requests to OpenAI's endpoints."""
    adapter: str | None
    """Value of `lora_path` in requests to `/generate`."""
    kind: Kind
    """Kind of the server, by the owner of its models."""


class ModelNames:
    """The models of the server behind `transport`, looked up on first use.

    `default` is the model of calls that do not name one.
    """

    def __init__(
        self, transport: Transport, default: str | None, request: Callable[[str, str], Awaitable[Json | None]]
    ) -> None:
        self._transport = transport
        self._default = default
        self._request = request
        self._served: dict[str | None, Served] = {}
        self._info: Json | None = None
        self._refuses_tools = False
        """Whether the server has refused a request because of its tools."""

    async def named(self, name: str | None) -> Served:
        """Return the model called `name`; the first one that the server lists if `name` and `default` are None.

        Raises `ModelError` if an SGLang server has no such model, because it would silently use another one.
        """
        name = self._default if name is None else name
        if name not in self._served:
            async with self._transport.connection().lock:
                if name not in self._served:
                    self._served[name] = self._find(name, await self._listing())
        return self._served[name]

    async def _listing(self) -> Json | None:
        try:
            return await self._request("GET", "/v1/models")
        except ModelError as error:
            if error.status is None:
                raise
            # The API key may allow to generate, but not to list models.
            return None

    async def adapter(self, name: str | None) -> str | None:
        """Return the value of `lora_path`; without a look-up at the server if no model was named."""
        if name is None and self._default is None:
            return None
        return (await self.named(name)).adapter

    async def draws_differ(self, name: str | None) -> bool:
        """Return whether the choices of one request, which has one seed, are independent samples.

        They are, except on an SGLang server with --enable-deterministic-inference, which gives each the same seed.
        """
        if (await self.named(name)).kind == "sglang":
            return (await self._server_info()).get("enable_deterministic_inference") is False
        return True

    async def parses_tools(self, request: Request) -> bool:
        """Return whether the server's chat endpoint parses calls of tools, or the request says so."""
        if request.tools is not None and request.tools.format != "auto":
            return request.tools.format == "native"
        if (await self.named(request.model)).kind == "sglang":
            return bool((await self._server_info()).get("tool_call_parser"))
        return not self._refuses_tools

    def refuses_tools(self, request: Request, error: ModelError) -> bool:
        """Return whether an error says that the server supports no tools, as far as the client may do without them."""
        is_forced = request.tools is not None and request.tools.format == "native"
        if is_forced or error.status not in (400, 404, 422, 501) or "tool" not in str(error).lower():
            return False
        if not uses_tools(request):
            return False
        known = self._served.get(self._default if request.model is None else request.model)
        if known is not None and known.kind == "openai":
            return False  # It supports tools, so the error is about something in them.
        if not self._refuses_tools:
            _log.warning("%s; the model is made to write its calls of tools as JSON instead", error)
        self._refuses_tools = True
        return True

    async def _server_info(self) -> Json:
        """Return the arguments of an SGLang server; empty if it does not show them."""
        async with self._transport.connection().lock:
            if self._info is None:
                try:
                    self._info = as_dict(await self._request("GET", "/server_info"))
                except ModelError as error:
                    if error.status is None:
                        raise
                    self._info = {}
        return self._info

    def _find(self, name: str | None, listing: Json | None) -> Served:
        cards = {str(card.get("id")): card for card in map(as_dict, as_dict(listing).get("data") or [])}
        kinds = [_OWNERS.get(str(card.get("owned_by")), "other") for card in cards.values()]
        kind: Kind = "sglang" if "sglang" in kinds else next(iter(kinds), "other")
        if name is None:
            # Servers with a single model accept any name.
            return Served(next(iter(cards), "default"), None, kind)
        if kind != "sglang":
            return Served(name, None, kind)
        if name in cards:
            base = cards[name].get("parent")
            return Served(name, None, kind) if base is None else Served(f"{base}:{name}", name, kind)
        base, _, adapter = name.partition(":")
        if base in cards and adapter in cards:
            return Served(name, adapter, kind)
        raise ModelError(
            f"model: {self._transport.url} has no model {name!r}; it has {', '.join(map(repr, cards))}"
        )
