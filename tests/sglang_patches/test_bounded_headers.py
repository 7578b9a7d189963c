"""Connections whose headers do not end, on uvicorn itself."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("httptools")

import uvicorn
from uvicorn.protocols.http import auto

from sglang_patches.http.bounded_headers import MAX_INCOMPLETE, bound_headers

LARGEST = 1000
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
HEADERS: list[bytes] = []


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Answer with the size of the body; keep the names of the headers."""
    HEADERS[:] = [name for name, _ in scope["headers"]]
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    answer = str(size).encode()
    length = str(len(answer)).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
    await send({"type": "http.response.body", "body": answer})


@pytest.fixture
async def connection(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Connection]:
    monkeypatch.setattr(auto, "AutoHTTPProtocol", auto.AutoHTTPProtocol)
    bound_headers(LARGEST)
    server = uvicorn.Server(uvicorn.Config(app, port=0, lifespan="off", log_level="error", loop="asyncio"))
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 (uvicorn has no event for it)
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    yield reader, writer
    writer.close()
    server.should_exit = True
    await serving


async def answer(reader: asyncio.StreamReader) -> bytes:
    """Read an answer without a content type: its body."""
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
    assert head.startswith(b"HTTP/1.1 200"), head
    (length,) = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
    return await reader.readexactly(int(length.partition(b":")[2]))


async def test_a_header_without_an_end_is_cut_off(connection: Connection) -> None:
    reader, writer = connection
    writer.write(b"GET / HTTP/1.1\r\nx-endless: ")
    sent = 0
    while sent <= MAX_INCOMPLETE * LARGEST:
        writer.write(b"x" * 100)
        await writer.drain()
        await asyncio.sleep(0.001)
        sent += 100
    refusal = await asyncio.wait_for(reader.read(), 20)
    assert refusal.startswith(b"HTTP/1.1 400")
    assert b"headers are too large" in refusal


async def test_headers_without_an_end_are_cut_off_behind_a_request(connection: Connection) -> None:
    reader, writer = connection
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    assert await answer(reader) == b"0"
    for number in range(MAX_INCOMPLETE * LARGEST // 10):
        writer.write((b"GET / HTTP/1.1\r\n" if number == 0 else b"") + b"x-%05d: 1\r\n" % number)
    refusal = await asyncio.wait_for(reader.read(), 20)
    assert refusal.startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize("pieces", [1, 7])
async def test_bodies_and_requests_one_after_the_other_do_not_count(
    connection: Connection, pieces: int
) -> None:
    reader, writer = connection
    size = 50 * LARGEST
    body = b"x" * size
    for _ in range(5):
        whole = b"POST / HTTP/1.1\r\ncontent-length: %d\r\nx-padding: %s\r\n\r\n" % (size, b"p" * 900) + body
        step = -(-len(whole) // pieces)
        for begin in range(0, len(whole), step):
            writer.write(whole[begin : begin + step])
            await writer.drain()
            await asyncio.sleep(0.002)
        assert await answer(reader) == str(size).encode()


async def test_pipelined_requests_do_not_count_together(connection: Connection) -> None:
    reader, writer = connection
    request = b"GET / HTTP/1.1\r\nx-padding: %s\r\n\r\n" % (b"p" * 900)
    writer.write(request * 20)
    for _ in range(20):
        assert await answer(reader) == b"0"


CHUNKED = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"


async def test_trailers_are_no_headers(connection: Connection) -> None:
    reader, writer = connection
    writer.write(CHUNKED + b"x-count: 7\r\n\r\n")
    assert await answer(reader) == b"2"
    assert HEADERS == [b"transfer-encoding"]


@pytest.mark.parametrize("trailer", [b"x-%d: 1\r\n", b"x%d"])
async def test_trailers_without_an_end_are_cut_off(connection: Connection, trailer: bytes) -> None:
    reader, writer = connection
    writer.write(CHUNKED)
    sent = 0
    for number in itertools.count():
        if sent > MAX_INCOMPLETE * LARGEST:
            break
        writer.write(trailer % number)
        sent += len(trailer % number)
        if number % 100 == 0:
            await writer.drain()
            await asyncio.sleep(0.001)
    refusal = await asyncio.wait_for(reader.read(), 20)
    assert b"headers are too large" in refusal
