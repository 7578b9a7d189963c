"""A small HTTP server for tests of the client: answers from a table of routes, remembers what it was asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal

Answer = tuple[int, Any] | tuple[int, Any, str]
"""A status and a body, and after which time to come again."""
Handler = Callable[["Received"], Answer | Awaitable[Answer]]


@dataclass(frozen=True)
class Received:
    """A request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass(frozen=True)
class Events:
    """A streamed answer: events as JSON, or lines as they stand."""

    events: list[Any]
    then: Literal["end", "drop", "hang"] = "end"
    """What comes after the last event: the end, a lost connection, or nothing until the client goes."""


@dataclass(frozen=True)
class Lines:
    """An answer of JSON lines, each as it comes; None loses the connection."""

    lines: AsyncIterator[Any]


@dataclass
class Server:
    """`routes` maps `"POST /path"` to a handler; a path that ends in `*` stands for all that begin so."""

    routes: dict[str, Handler]
    received: list[Received] = field(default_factory=list)
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a client closes its connection while it waits for an answer."""
    url: str = ""
    _arrival: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def __aenter__(self) -> Server:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()

    async def until(self, count: int) -> None:
        """Wait until so many requests have come."""
        async with self._arrival:
            await self._arrival.wait_for(lambda: len(self.received) >= count)

    def asked(self, path: str) -> list[Received]:
        return [request for request in self.received if request.path == path]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readline():
                method, path, _ = head.decode().split()
                headers = {}
                while line := (await reader.readline()).decode().strip():
                    name, _, value = line.partition(":")
                    headers[name.lower()] = value.strip()
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                request = Received(method, path, headers, json.loads(body) if body else None)
                self.received.append(request)
                async with self._arrival:
                    self._arrival.notify_all()
                status, answer, *wait = await self._answer(request, reader)
                if isinstance(answer, Events):
                    await self._stream(answer, reader, writer)
                    continue
                if isinstance(answer, Lines):
                    await self._lines(answer, reader, writer)
                    continue
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                more = "".join(f"Retry-After: {each}\r\n" for each in wait)
                head = f"HTTP/1.1 {status} X\r\n{more}Content-Length: {len(data)}\r\n\r\n"
                writer.write(head.encode() + data)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _stream(
        self, answer: Events, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n")
        for event in answer.events:
            data = event if isinstance(event, bytes) else b"data: " + json.dumps(event).encode() + b"\n\n"
            writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            await writer.drain()
        if answer.then == "end":
            writer.write(b"0\r\n\r\n")
            return
        if answer.then == "hang":
            await reader.read(1)
            self.hung_up.set()
        raise ConnectionError

    async def _lines(self, answer: Lines, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n")
        leaving = asyncio.ensure_future(reader.read(1))
        while True:
            coming = asyncio.ensure_future(anext(answer.lines, ...))
            await asyncio.wait({coming, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                coming.cancel()
                self.hung_up.set()
                raise ConnectionError
            if (line := coming.result()) is ...:
                break
            if line is None:
                leaving.cancel()
                raise ConnectionError
            data = json.dumps(line).encode() + b"\n"
            writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            await writer.drain()
        leaving.cancel()
        await asyncio.wait({leaving})
        writer.write(b"0\r\n\r\n")

    async def _answer(self, request: Received, reader: asyncio.StreamReader) -> Answer:
        handler = next(
            (
                handler
                for route, handler in self.routes.items()
                if f"{request.method} {request.path}" == route
                or (route.endswith("*") and f"{request.method} {request.path}".startswith(route[:-1]))
            ),
            None,
        )
        if handler is None:
            return 404, {"detail": "Not Found"}
        answer = handler(request)
        if not isinstance(answer, tuple):
            working = asyncio.ensure_future(answer)
            leaving = asyncio.ensure_future(reader.read(1))
            await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                working.cancel()
                self.hung_up.set()
                raise ConnectionError
            leaving.cancel()
            # Until it is over, nothing else can read: the next request would break the connection.
            await asyncio.wait({leaving})
            return working.result()
        return answer
