"""The launcher where it ends before there is a server."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from hive.server.server_process import ServerProcess, slowdown
from sglang_patches import cpu_platform


@pytest.fixture
def launch(launch_server: Callable[..., ServerProcess]) -> Callable[..., tuple[int, str]]:
    """A function that runs the launcher with flags and variables; its exit status and all that it wrote."""

    def run(*flags: str, environment: Mapping[str, str] | None = None) -> tuple[int, str]:
        ended = launch_server(*flags, environment=environment, wait=False)
        return ended.process.wait(120 * slowdown()), ended.log_path.read_text()

    return run


def test_the_help_ends_in_hives_group(launch: Callable[..., tuple[int, str]]) -> None:
    status, told = launch("--help")
    assert status == 0
    assert "--model-path" in told
    assert told.index("Hive:") < told.index("--hive-logits-cache-bytes")


@pytest.mark.skipif(not cpu_platform.needed(), reason="this machine has an accelerator")
def test_a_hierarchical_cache_on_a_cpu_is_refused_in_one_sentence(
    launch: Callable[..., tuple[int, str]],
) -> None:
    status, told = launch("--enable-hierarchical-cache")
    assert status == 1
    assert told.splitlines()[-1].startswith("hive: --enable-hierarchical-cache needs a GPU")
    assert "Traceback" not in told


def test_segments_are_refused_for_what_arguments_show(launch: Callable[..., tuple[int, str]]) -> None:
    status, told = launch("--hive-kv-segments", "--page-size", "16")
    assert status == 1
    assert told.splitlines()[-1].startswith("hive: --hive-kv-segments cannot be used: --page-size 16")
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("flags", "environment", "words"),
    [
        (("--smg-grpc-mode",), {}, "hive: --smg-grpc-mode serves gRPC only"),
        (("--tokenizer-worker-num", "2"), {}, "hive: --tokenizer-worker-num must be 1"),
        ((), {"DUMPER_SERVER_PORT": "reuse"}, "hive: DUMPER_SERVER_PORT=reuse adds a route"),
        (
            ("--hive-record-traffic", "/"),
            {},
            "hive: --hive-record-traffic cannot write to /: Is a directory",
        ),
        (
            ("--hive-record-traffic", "/dev/null", "--pp-size", "2"),
            {},
            "hive: --hive-record-traffic needs --pp",
        ),
    ],
)
def test_settings_that_cannot_be_served_stop_the_start(
    launch: Callable[..., tuple[int, str]], flags: tuple[str, ...], environment: dict[str, str], words: str
) -> None:
    status, told = launch(*flags, environment=environment)
    assert status == 1
    assert words in told.splitlines()[-1]
