"""Bounds how much a connection may send in the headers of a request, and in trailers behind its body.

uvicorn's parser in C (httptools) halves the cost of a request, but has no limit of its own: a client could send one
header for ever.  The request middleware sees a request only once its headers are complete.  Trailers are ignored.
"""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http import auto

MAX_INCOMPLETE = 4
"""Bytes before the end of the headers, as a multiple of the largest headers that the request middleware accepts: those
between get its error, which names the limit.
"""


def bound_headers(max_header_bytes: int) -> None:
    """Make uvicorn close connections whose headers do not end; uvicorn's parser in Python has a limit of its own."""
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:
        return
    limit = MAX_INCOMPLETE * max_header_bytes

    class BoundedProtocol(HttpToolsProtocol):
        """uvicorn's protocol with a limit on data that completes neither headers nor a part of a body."""

        in_headers = True
        """Whether the headers of a request are being read, or the next request is awaited."""
        quiet = 0
        """Bytes that have arrived since the last headers or part of a body were complete."""
        progressed = False
        """Whether the data that arrived last completed some."""

        def data_received(self, data: bytes) -> None:
            self.progressed = False
            super().data_received(data)
            self.quiet = 0 if self.progressed else self.quiet + len(data)
            if self.quiet > limit and not self.transport.is_closing():
                self.send_400_response("The request's headers are too large.")

        def on_header(self, name: bytes, value: bytes) -> None:
            # The parser reports trailers as headers, after the app has begun to read those.
            if self.in_headers:
                super().on_header(name, value)

        def on_headers_complete(self) -> None:
            self.in_headers, self.progressed = False, True
            super().on_headers_complete()

        def on_body(self, body: bytes) -> None:
            self.progressed = True
            super().on_body(body)

        def on_message_complete(self) -> None:
            self.in_headers = self.progressed = True
            super().on_message_complete()

    protocols: Any = auto
    protocols.AutoHTTPProtocol = BoundedProtocol
