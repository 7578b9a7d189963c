"""The servers that the bench starts itself: Hive, stock SGLang and, on a GPU, SGLang's NGRAM speculation."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import httpx

from bench.harness.client import BenchError
from hive import ModelError
from hive.launch_server import cpu_defaults
from hive.server.embedded_model import EmbeddedModelError, ensure_embedded_model
from hive.server.roles import lora_flags
from hive.server.server_process import ServerDied, ServerProcess
from sglang_patches.cpu_platform import needed as on_cpu

GPU_START_S = 900.0
"""The longest that a server is waited for: the first one on a machine compiles kernels for minutes."""
NGRAM_FLAGS = ("--speculative-algorithm", "NGRAM")
FAILURES = (
    *(BenchError, EmbeddedModelError, FileNotFoundError, ModelError, ServerDied, ValueError, httpx.HTTPError),
)
"""Of servers and of what they serve; anything else is a fault of the bench."""


@contextlib.contextmanager
def started(kinds: Sequence[str], model: Path, flags: Sequence[str], cpu: bool) -> Iterator[dict[str, str]]:
    """URLs of running servers by kind (``hive``, ``stock`` or ``ngram``), which end with the context.

    On a CPU they start one after the other: two that import at the same time take longer than that on a small
    machine. Beside a GPU, where there are cores, they all start at once. Raises `ServerDied` when one does not come
    up.
    """
    common = ["--model-path", str(model), *flags]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hive-bench-")))
        servers: dict[str, ServerProcess] = {}
        for kind in kinds:
            # What Hive's launcher chooses on a CPU, stock gets, too: the arms must differ in the cache alone.
            extra = cpu_defaults(common) if cpu and kind != "hive" else []
            server = ServerProcess(
                [*common, *extra, *(NGRAM_FLAGS if kind == "ngram" else ())],
                folder / f"{kind}.log",
                module="hive.launch_server" if kind == "hive" else "sglang.launch_server",
                environment={"OMP_WAIT_POLICY": "PASSIVE"} if cpu else None,
            )
            stack.callback(server.stop)
            servers[kind] = server
            if cpu:
                server.wait()
        for server in servers.values():
            server.wait(GPU_START_S)
        yield {kind: server.url for kind, server in servers.items()}


def served_model(url: str) -> str:
    """What a server calls its model, less the folder. Raises `BenchError` when no server answers there."""
    try:
        answer = httpx.get(f"{url}/model_info", timeout=30, trust_env=False).raise_for_status()
    except httpx.HTTPError as error:
        raise BenchError(f"{url} does not answer as an SGLang server: {error}") from None
    return Path(answer.json()["model_path"]).name


@contextlib.contextmanager
def hive_server(url: str | None, *, roles: bool, say: Callable[[str], None]) -> Iterator[str]:
    """The URL of a Hive server: the one given, or one that is started with the embedded model, and its roles."""
    if url is not None:
        yield url.rstrip("/")
        return
    say("starting a server")
    with started(["hive"], ensure_embedded_model(), lora_flags(on_cpu()) if roles else [], on_cpu()) as urls:
        yield urls["hive"]
