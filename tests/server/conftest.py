"""Servers that several modules of tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from hive.server.embedded_model import ensure_embedded_model
from hive.server.server_process import ServerProcess
from tests.server.kv_client import KvClient
from tests.server.kv_reference import Reference
from tests.server.replay_client import KEY, ReplayClient


@pytest.fixture(scope="session")
def exact_server(launch_server: Callable[..., ServerProcess]) -> ServerProcess:
    """A server in float32, guarded by a key: one request at a time, its outputs are a pure function of the request.

    In bfloat16, as the default one is, they depend on what else is in the batch.
    """
    return launch_server("--dtype", "float32", "--api-key", KEY, "--hive-replay-ahead")


@pytest.fixture(scope="module")
def exact(exact_server: ServerProcess) -> Iterator[ReplayClient]:
    """A client of it, with empty caches."""
    client = ReplayClient(exact_server.url)
    client.flush()
    yield client
    client.http.close()


@pytest.fixture(scope="module")
def kv_client(kv_server: ServerProcess) -> Iterator[KvClient]:
    """A client of the server that keeps segments; when the module is done with it, nothing may be left."""
    client = KvClient(kv_server)
    client.flush()
    yield client
    client.assert_sound()
    client.http.close()


@pytest.fixture(scope="session")
def reference() -> Reference:
    """The embedded model by transformers."""
    return Reference(ensure_embedded_model())
