"""Servers that several modules of tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from hive.server.embedded_model import ensure_embedded_model
from hive.server.server_process import ServerProcess
from tests.repetitions import LAYERS, LAYERS_FLAGS
from tests.server.kv_client import KvClient
from tests.server.kv_reference import Reference
from tests.server.replay_client import KEY, ReplayClient


@pytest.fixture(scope="session")
def exact_server(launch_server: Callable[..., ServerProcess]) -> ServerProcess:
    """A server in float32, guarded by a key: one request at a time, its outputs are a pure function of the request.

    In bfloat16, as the default one is, they depend on what else is in the batch.
    """
    return launch_server("--dtype", "float32", "--api-key", KEY, "--hive-replay-ahead", *LAYERS_FLAGS)


@pytest.fixture(scope="module")
def exact(exact_server: ServerProcess) -> Iterator[ReplayClient]:
    """A client of it, with empty caches."""
    client = ReplayClient(exact_server.url)
    client.flush()
    yield client
    client.http.close()


@pytest.fixture(scope="session")
def roles_server(launch_server: Callable[..., ServerProcess]) -> ServerProcess:
    """A server with the embedded model's roles, in float32: with adapters every request costs more, so that the others
    have none. It runs the whole model, for what few layers would not say."""
    # Several servers run by now: the cache is not to shrink for what else the machine does.
    flags = ("--hive-roles", "--hive-kv-segments", "--hive-min-free-host-bytes", "0")
    return launch_server(*flags, "--dtype", "float32", "--api-key", KEY)


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
    """The embedded model by transformers, as deep as the server that keeps segments has it."""
    return Reference(ensure_embedded_model(), LAYERS)
