"""Bounds how much a connection may send before the headers of a request are complete.

uvicorn's parser in C (httptools) halves the cost of a request, but has no limit of its own: a client could send one
header for ever.  The request middleware sees a request only once its headers are complete.
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
        """uvicorn's protocol with a limit on incomplete headers."""

        in_headers = True
        """Whether the headers of a request are being read, or the next request is awaited."""
        incomplete = 0
        """Bytes of headers that have arrived without an end."""
        completed = False
        """Whether headers were completed by the data that arrived last."""

        def data_received(self, data: bytes) -> None:
            before = self.in_headers
            self.completed = False
            super().data_received(data)
            if before and not self.completed:
                self.incomplete += len(data)
                if self.incomplete > limit and not self.transport.is_closing():
                    self.send_400_response("The request's headers are too large.")

        def on_headers_complete(self) -> None:
            self.in_headers, self.incomplete, self.completed = False, 0, True
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            self.in_headers = True
            super().on_message_complete()

    protocols: Any = auto
    protocols.AutoHTTPProtocol = BoundedProtocol
