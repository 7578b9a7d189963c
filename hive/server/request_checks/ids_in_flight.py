"""Request ids that are in use: two requests under one id would get each other's fate.

SGLang refuses an id that it knows, but of a stream only after status 200 is out; and two seconds after the end of any
stream, the refused one too, it aborts whatever runs under the stream's id then.  So a second request must not reach it.
"""

from __future__ import annotations

from typing import Any

from hive.server.request_tag import RequestError, shown


class IdsInFlight:
    """The ids of the requests that one HTTP process serves.  Not thread-safe: it lives on the event loop."""

    def __init__(self) -> None:
        self._ids: set[str] = set()

    def __len__(self) -> int:
        return len(self._ids)

    def claim(self, rid: Any, field: str = "rid") -> list[str]:
        """Take the ids that a body names in ``rid`` (a checked one: a string, distinct strings, or None).  ``field`` is
        what a message calls it.

        The caller gives them back to :meth:`release` when the request is over, what follows its answer included.

        Raises:
            RequestError: where one of them is taken; then none is.
        """
        ids: list[str] = [rid] if isinstance(rid, str) else list(rid or ())
        for name in ids:
            if name in self._ids:
                raise RequestError(
                    field,
                    f"must not be that of a request in flight, got {shown(name)}; leave it out, or wait for the other "
                    "one (after a stream, for two seconds more)",
                )
        self._ids.update(ids)
        return ids

    def release(self, ids: list[str]) -> None:
        """Free what :meth:`claim` returned."""
        self._ids.difference_update(ids)
