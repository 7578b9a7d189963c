"""``GET /hive/events`` and ``GET /hive/ui``."""

from __future__ import annotations

import signal
from typing import Any

import msgspec
from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from hive.server.events.event import AnyEvent
from hive.server.events.hub import EventHub, TooManyClients
from hive.server.events.stream import EventStream
from hive.server.ui import page
from sglang_patches.http.control import controller


def router(tokenizer_manager: Any) -> APIRouter:
    """Return the routes for a running tokenizer manager."""
    routes = APIRouter(prefix="/hive")
    control = controller(tokenizer_manager)

    async def poll() -> list[list[AnyEvent]]:
        return [msgspec.convert(rank["events"], list[AnyEvent]) for rank in await control("events")]

    hub = EventHub(poll, stopping=_stopping)

    @routes.get("/events", response_class=Response)
    async def events() -> Response:
        try:
            return EventStream(hub)
        except TooManyClients as error:
            # SGLang's handler for HTTPException drops headers.
            return JSONResponse({"detail": str(error)}, 503, {"retry-after": "10"})

    @routes.get(page.PATH.removeprefix("/hive"), response_class=Response)
    async def ui() -> Response:
        return Response(page.content(), media_type="text/html", headers=page.HEADERS)

    return routes


def _stopping() -> bool:
    """Whether uvicorn is shutting down. It has no public way to ask, and waits for streams to end by themselves."""
    handler = signal.getsignal(signal.SIGINT)
    return bool(getattr(getattr(handler, "__self__", None), "should_exit", False))
