"""The servers that the bench starts: Hive with KV segments, and stock SGLang if the baseline is to run there, too."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from bench.harness import servers

Kind = Literal["hive", "stock"]


def hive_flags(*, hidden_states: bool, neutral_prefix: str | None) -> list[str]:
    """What the Hive server gets beside the flags of both.

    Its Logits Cache is off: repetitions would be answered from it, and nothing of this is about that.
    """
    flags = ["--hive-kv-segments", "--no-hive-logits-cache"]
    if neutral_prefix is not None:
        flags += ["--hive-kv-neutral-prefix", neutral_prefix]
    if hidden_states:
        flags.append("--enable-return-hidden-states")
    return flags


@contextlib.contextmanager
def started(
    kinds: Sequence[Kind], model: Path, flags: Sequence[str], of_hive: Sequence[str], on_cpu: bool
) -> Iterator[dict[Kind, str]]:
    """URLs of running servers by kind, which end with the context.

    Raises `ServerDied` when one does not come up.
    """
    urls: dict[Kind, str] = {}
    with contextlib.ExitStack() as stack:
        for kind in kinds:
            own = [*flags, *of_hive] if kind == "hive" else flags
            urls[kind] = stack.enter_context(servers.started([kind], model, own, on_cpu))[kind]
        yield urls
