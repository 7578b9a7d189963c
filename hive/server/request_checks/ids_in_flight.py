"""The request ids in use: two requests with one id would receive each other's aborts.

SGLang refuses an id in use, but for a stream only after it has sent status 200.  And two seconds after the end of any
stream, even a refused one, it aborts the request that has the stream's id by then.  So Hive refuses a second request
itself.
"""

from __future__ import annotations

from typing import Any

from hive.server.request_tag import RequestError, shown


class IdsInFlight:
    """The ids of the requests that one HTTP process serves.  Not thread-safe: only the event loop uses it."""

    def __init__(self) -> None:
        self._ids: set[str] = set()

    def __len__(self) -> int:
        return len(self._ids)

    def claim(self, rid: Any, field: str = "rid") -> list[str]:
        """Reserve the ids in the checked field ``rid`` of a body: a string, distinct strings, or None.

        The caller must pass them to :meth:`release` when the request is over, including what follows its answer.
        ``field`` is the name for errors.

        Raises:
            RequestError: if an id is taken; then none is reserved.
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
        """Free the ids that :meth:`claim` returned."""
        self._ids.difference_update(ids)
