"""What the HTTP process writes into every request to the engine: its whole tag, and the time of its arrival."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from hive_frontend.wire import TAG_KEY

from hive.server.request_tag import tag_of_request
from sglang_patches.requests.request_state import ARRIVAL_KEY, Arrival


def now() -> float:
    """Return the time with which requests and hints are stamped, in seconds of a clock that all HTTP workers share."""
    return time.monotonic()


def arrived(custom_params: Mapping[str, Any] | None, *, answers_person: bool = False) -> dict[str, Any]:
    """Return the custom parameters of a request that arrives now; the headers' tag overrides the body's."""
    custom = dict(custom_params or {})
    if tag := tag_of_request(custom.get(TAG_KEY)):
        custom[TAG_KEY] = tag
    custom[ARRIVAL_KEY] = Arrival(now(), answers_person).to_wire()
    return custom
