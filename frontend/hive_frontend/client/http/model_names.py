"""Which models and adapters a server has, and how its routes name them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from hive_frontend.client.http.answers import as_dict
from hive_frontend.client.http.transport import Transport
from hive_frontend.client.json_text import Json
from hive_frontend.client.spelling import Kind
from hive_frontend.errors import ModelError

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
    """What `model` says in requests to OpenAI's endpoints."""
    adapter: str | None
    """What `lora_path` says in requests to `/generate`."""
    kind: Kind
    """Whose server it is, by what it says of its models."""


class ModelNames:
    """The models of the server at the end of `transport`, looked up when they are first asked for.

    `default` is the name of the one that is meant where a call names none.
    """

    def __init__(
        self, transport: Transport, default: str | None, ask: Callable[[str, str], Awaitable[Json | None]]
    ) -> None:
        self._transport = transport
        self._default = default
        self._ask = ask
        self._served: dict[str | None, Served] = {}
        self._deterministic: bool | None = None

    async def named(self, name: str | None) -> Served:
        """The model that a call asks for; the first one that the server lists when it asks for none.

        `ModelError` when an SGLang server has no model of this name, for it would answer with another one.
        """
        name = self._default if name is None else name
        if name not in self._served:
            async with self._transport.connection().lock:
                if name not in self._served:
                    self._served[name] = self._find(name, await self._listing())
        return self._served[name]

    async def _listing(self) -> Json | None:
        try:
            return await self._ask("GET", "/v1/models")
        except ModelError as error:
            if error.status is None:
                raise
            # Who may generate may not be one who may list.
            return None

    async def adapter(self, name: str | None) -> str | None:
        """What `lora_path` says, without a look at the server where nothing was named."""
        if name is None and self._default is None:
            return None
        return (await self.named(name)).adapter

    async def draws_differ(self, name: str | None) -> bool:
        """Whether several choices of one request, which has one seed, are draws of their own.

        They are but on an SGLang server with --enable-deterministic-inference: it gives each the same seed.
        """
        if (await self.named(name)).kind == "sglang":
            if self._deterministic is None:
                info = await self._ask("GET", "/server_info")
                self._deterministic = as_dict(info).get("enable_deterministic_inference") is not False
            return not self._deterministic
        return True

    def _find(self, name: str | None, listing: Json | None) -> Served:
        cards = {str(card.get("id")): card for card in map(as_dict, as_dict(listing).get("data") or [])}
        kinds = [_OWNERS.get(str(card.get("owned_by")), "other") for card in cards.values()]
        kind: Kind = "sglang" if "sglang" in kinds else next(iter(kinds), "other")
        if name is None:
            # Servers of a single model take any name.
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
            f"model: {self._transport.url} has no {name!r}; it has {', '.join(map(repr, cards))}"
        )
