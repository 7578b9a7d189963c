"""Two servers behind routers, all started as docker/compose.yaml says."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import httpx
import pytest

from hive.server.server_process import ServerProcess, free_port, slowdown
from tests.router.compose import ROUTER, SERVERS, command, with_value


class Fleet(NamedTuple):
    """Servers, and routers before all of them."""

    servers: tuple[ServerProcess, ...]
    router: ServerProcess
    random_router: ServerProcess
    """The same by chance, whatever the routing key."""

    @property
    def urls(self) -> list[str]:
        return [server.url for server in self.servers]


@pytest.fixture(scope="module")
def fleet(launch_server: Callable[..., ServerProcess]) -> Iterator[Fleet]:
    """Servers of their own: a router needs two, with the flags that the compose file gives them."""
    if importlib.util.find_spec("sglang_router") is None:
        pytest.skip("sglang-router is not installed. Run: uv pip install -e '.[router]'")
    commands = [command(service) for service in SERVERS]
    servers = tuple(launch_server(*each.flags, module=each.module, wait=False) for each in commands)
    for server in servers:
        server.wait()
    # In the container, services have names and the same port.
    places = {
        f"http://{service}:{each.port}": server.url
        for service, each, server in zip(SERVERS, commands, servers, strict=True)
    }
    routing = command(ROUTER)
    flags = tuple(places.get(flag, flag) for flag in routing.flags)
    routers = [
        launch_server(
            *with_value(with_value(flags, "--prometheus-port", str(free_port())), "--policy", policy),
            module=routing.module,
        )
        for policy in ("manual", "random")
    ]
    for router in routers:
        _wait_for_workers(router, len(servers))
    yield Fleet(servers, *routers)
    for process in (*routers, *servers):
        process.stop()


def _wait_for_workers(router: ServerProcess, count: int) -> None:
    """A router is up before it has looked at the servers."""
    end = time.monotonic() + 60 * slowdown()
    while True:
        workers = httpx.get(f"{router.url}/workers", trust_env=False).json()["workers"]
        if sum(worker["is_healthy"] for worker in workers) == count:
            return
        assert time.monotonic() < end, router.log()
        time.sleep(0.1)
