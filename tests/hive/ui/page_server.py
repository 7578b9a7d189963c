"""A server of the page whose events a test makes up."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from hive.server.ui import page


class PageServer:
    """Serves the page, and to each client of ``events`` what :meth:`tell` was given since it came."""

    def __init__(self, key: str | None = None) -> None:
        self.key = key
        self.told: list[bytes] = []
        self.asked: list[str] = []
        """Paths, in the order in which they were asked for."""
        self._streams: list[queue.Queue[bytes | None]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        Thread(target=self._server.serve_forever, daemon=True).start()

    def tell(self, **events: Any) -> None:
        """Send events, by kind."""
        for kind, event in events.items():
            frame = f"event: {kind}\ndata: {json.dumps(event)}\n\n".encode()
            self.told.append(frame)
            for stream in self._streams:
                stream.put(frame)

    def hang_up(self) -> None:
        """End the streams that are open."""
        for stream in self._streams:
            stream.put(None)
        self._streams.clear()

    def close(self) -> None:
        self.hang_up()
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                if self.path == page.PATH:
                    self._answer(200, page.content().encode(), {"content-type": "text/html", **page.HEADERS})
                elif self.path != "/hive/events":
                    self._answer(404, b"", {})
                elif outer.key and self.headers["Authorization"] != f"Bearer {outer.key}":
                    self._answer(401, b"", {})
                else:
                    self._stream()

            def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def _stream(self) -> None:
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.end_headers()
                mine: queue.Queue[bytes | None] = queue.Queue()
                for frame in outer.told:
                    mine.put(frame)
                outer._streams.append(mine)
                while (frame := mine.get()) is not None:
                    self.wfile.write(frame)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler


@contextmanager
def page_server(key: str | None = None) -> Iterator[PageServer]:
    """A running server, stopped at the end."""
    server = PageServer(key)
    try:
        yield server
    finally:
        server.close()
