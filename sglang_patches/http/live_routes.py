"""``GET /hive/events`` and ``GET /hive/ui``."""

from __future__ import annotations

import signal
from typing import Any

from fastapi import APIRouter, HTTPException, Response
from fastapi.responses import JSONResponse

from hive.server.events.endpoint import OFF, of_rank
from hive.server.events.hub import EventHub, TooManyClients
from hive.server.events.stream import EventStream
from hive.server.flags.server_args import HiveServerArgs
from hive.server.ui import page


def router(server_args: Any) -> APIRouter:
    """``GET /hive/events`` and ``GET /hive/ui``."""
    routes = APIRouter(prefix="/hive")
    endpoint = HiveServerArgs.from_environment().events_endpoint
    hub = EventHub([of_rank(endpoint, rank) for rank in range(server_args.dp_size)], stopping=_stopping)

    @routes.get("/events", response_class=Response)
    async def events() -> Response:
        if endpoint == OFF:
            raise HTTPException(404, "the server was started with --hive-events-endpoint off")
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
