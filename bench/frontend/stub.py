"""``python -m bench.frontend.stub``: a server that answers at once, in a process of its own; prints its port.

It speaks as much of Hive's routes as the client's cost takes: `/hive/generate` with a line per sample, in chunks, as
servers of this kind send them; everything else gets an empty object.
"""

from __future__ import annotations

import asyncio
import json

_HEAD = b"HTTP/1.1 200 OK\r\ndate: Sun, 01 Jan 2026 00:00:00 GMT\r\nserver: uvicorn\r\n"
_LINES = _HEAD + b"content-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n"
_NOTHING = _HEAD + b"content-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
PROMPT_TOKENS = 40
_PROMPT_IDS = list(range(1000, 1000 + PROMPT_TOKENS))
_ANSWER = {
    "text": " Add 3 and 5 first, then multiply by the rest.",
    "output_ids": list(range(2000, 2012)),
    "meta_info": {
        "id": "0123456789abcdef0123456789abcdef",
        "finish_reason": {"type": "stop", "matched": 2},
        "prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": 12,
        "cached_tokens": 30,
        "e2e_latency": 0.0123,
        "weight_version": "default",
        "hive": {"tokens_replayed": 4, "tokens_generated": 8},
    },
}


def _chunk(line: object) -> bytes:
    data = json.dumps(line).encode() + b"\n"
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


class _Stub(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._rest = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._rest += data
        while True:
            head, found, rest = self._rest.partition(b"\r\n\r\n")
            if not found:
                return
            _, _, length = head.lower().partition(b"content-length:")
            size = int(length.split(b"\r\n", 1)[0] or 0)
            if len(rest) < size:
                return
            body, self._rest = rest[:size], rest[size:]
            assert self._transport is not None
            self._transport.write(_answer(head, body))


def _answer(head: bytes, body: bytes) -> bytes:
    if not head.startswith(b"POST /hive/generate "):
        return _NOTHING
    asked = json.loads(body)
    calls = asked.get("calls", [asked])
    lines: list[object] = [
        {"prompt": {"call": at, "kept": 0, "ids": _PROMPT_IDS}} for at in range(len(calls))
    ]
    lines += [{"index": index, **_ANSWER} for index in range(sum(len(call["samples"]) for call in calls))]
    return _LINES + b"".join(map(_chunk, lines)) + b"0\r\n\r\n"


async def _main() -> None:
    server = await asyncio.get_running_loop().create_server(_Stub, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main())
