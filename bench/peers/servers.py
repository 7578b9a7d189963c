"""The servers that the bench starts, one of each kind for the game and, with a small KV pool, one for the repairs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from bench.harness.servers import started
from bench.peers.arms import Kind
from hive.server.server_process import ServerDied

GPU_FLAGS = {
    # A pool of this many tokens, whatever else is on the device: servers that start at the same time would otherwise
    # each count on memory that the others are about to take.
    "--max-total-tokens": ["131072"],
    "--mem-fraction-static": ["0.8"],
    "--cuda-graph-max-bs": ["32"],
    # An idle scheduler polls without a pause, by default: a core of each server whose turn it is not.
    "--sleep-on-idle": [],
}

LARGE_BYTES = 4_000_000_000
"""Of weights, from where on a model is large."""
LARGE_FLAGS = {
    # Three of 8B with adapters, pools and graphs then take some 70 GB; a game needs a tenth of such a pool. Graphs are
    # for as many rows as SGLang has them by default on such a device, give or take a factor of two.
    "--max-total-tokens": ["16384"],
    "--mem-fraction-static": ["0.9"],
    "--cuda-graph-max-bs": ["256"],
}


class Wanted(NamedTuple):
    """A server to start."""

    kind: Kind
    flags: tuple[str, ...]


def gpu_defaults(flags: Sequence[str], model: Path) -> list[str]:
    """Flags that let several servers share a GPU, less those that are given."""
    given = {word.split("=", 1)[0] for word in flags}
    large = sum(file.stat().st_size for file in model.glob("*.safetensors")) > LARGE_BYTES
    defaults = GPU_FLAGS | LARGE_FLAGS if large else GPU_FLAGS
    return [word for flag, values in defaults.items() if flag not in given for word in (flag, *values)]


@contextlib.contextmanager
def running(
    wanted: Sequence[Wanted], model: Path, on_cpu: bool
) -> Iterator[tuple[Mapping[Kind, str], Mapping[Kind, ServerDied]]]:
    """URLs of servers, which end with the context, and the errors of those that did not come up.

    On a CPU they start one after the other: two that import at the same time take longer than that on a small
    machine. Beside a GPU, where there are cores, they all start at once.
    """
    contexts = {
        each.kind: started(
            [each.kind],
            model,
            each.flags if on_cpu else [*each.flags, *gpu_defaults(each.flags, model)],
            on_cpu,
        )
        for each in wanted
    }
    urls: dict[Kind, str] = {}
    died: dict[Kind, ServerDied] = {}
    with contextlib.ExitStack() as stack:
        with ThreadPoolExecutor(1 if on_cpu else max(1, len(wanted))) as threads:
            starts = {kind: threads.submit(context.__enter__) for kind, context in contexts.items()}
        errors: list[BaseException] = []
        for kind, start in starts.items():
            error = start.exception()
            if error is None:
                stack.push(contexts[kind])
                urls |= {kind: start.result()[kind]}
            elif isinstance(error, ServerDied):
                died[kind] = error
            else:
                errors.append(error)
        if errors:
            raise errors[0]
        yield urls, died
