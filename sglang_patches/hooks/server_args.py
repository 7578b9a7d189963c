"""Hooks on how ``ServerArgs`` are completed: a CPU keeps the sampler that was asked for.  And on how they are shown.

The step is a method in SGLang 0.5.17.  In 0.5.23 it is a function that declares values beside what flags said.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hive.server.flags.secret_args import HIDDEN, SECRETS, without_secrets


def around_handle_cpu_backends(original: Callable[[Any], None], self: Any) -> None:
    """Upstream sets ``sampling_backend = "pytorch"`` on a CPU, whatever the flag said."""
    asked = self.sampling_backend
    original(self)
    if asked is not None:
        self.sampling_backend = asked


def around_cpu_backends_step(original: Callable[[Any], None], server_args: Any) -> None:
    """Upstream declares ``sampling_backend = "pytorch"`` on a CPU; the last declaration counts."""
    from sglang.srt.arg_groups.overrides import declare_resolution

    asked = server_args.sampling_backend
    original(server_args)
    if asked is not None:
        declare_resolution(server_args, "hive", sampling_backend=asked)


def around_repr(original: Callable[[Any], str], self: Any) -> str:
    """SGLang logs its arguments as it starts."""
    text = original(self)
    for name in SECRETS:
        if value := getattr(self, name, None):
            text = text.replace(f"{name}={value!r}", f"{name}={HIDDEN!r}")
    return text


def around_server_args_for_logging(
    original: Callable[[Any], dict[str, Any]], server_args: Any
) -> dict[str, Any]:
    """What later releases log as they start."""
    shown: dict[str, Any] = without_secrets(original(server_args))
    return shown
