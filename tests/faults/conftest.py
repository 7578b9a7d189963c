"""The server that the tests of this folder hurt in turn, and how they see whether it got over it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hive.server.server_process import ServerProcess, slowdown
from tests.server.replay_client import ReplayClient

POOL = 200
"""Tokens that the KV cache has room for: a few requests together have more."""


@pytest.fixture(scope="session")
def tight_server(launch_server: Callable[..., ServerProcess]) -> ServerProcess:
    """A server of its own, in float32: with little room, and it admits requests as if their outputs were short."""
    return launch_server(
        *("--dtype", "float32", "--max-total-tokens", str(POOL), "--max-running-requests", "24"),
        *("--schedule-conservativeness", "0.01"),
    )


@pytest.fixture
def tight(tight_server: ServerProcess) -> Iterator[ReplayClient]:
    """A client of it, with empty caches."""
    client = ReplayClient(tight_server.url)
    client.flush()
    yield client
    client.http.close()


def settled(client: ReplayClient) -> dict[str, Any]:
    """Wait until nothing runs; the counters of the Logits Cache then.

    AssertionError when anything is left behind. The engine looks for leaks in its own books whenever it is idle, and
    ends if it finds one.
    """
    end = time.monotonic() + 60 * slowdown()
    while True:
        found = client.post("/hive/check", {})
        if found == {"idle": True, "problems": []}:
            return client.cache()
        assert time.monotonic() < end, found
        time.sleep(0.1)
