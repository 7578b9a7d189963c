"""Hooks on ``ServerArgs``: keep the chosen sampler on a CPU, and redact secrets.

The step that chooses CPU backends is a method in SGLang 0.5.17.  In 0.5.23 it is a function that declares values on
top of the flags.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hive.server.flags.secret_args import HIDDEN, SECRETS, without_secrets


def around_handle_cpu_backends(original: Callable[[Any], None], self: Any) -> None:
    """Restore the sampler: upstream sets ``sampling_backend = "pytorch"`` on a CPU, whatever the flag said."""
    asked = self.sampling_backend
    original(self)
    if asked is not None:
        self.sampling_backend = asked


def around_cpu_backends_step(original: Callable[[Any], None], server_args: Any) -> None:
    """Declare the sampler again: upstream declares ``sampling_backend = "pytorch"`` on a CPU, and the last
    declaration wins.
    """
    from sglang.srt.arg_groups.overrides import declare_resolution

    asked = server_args.sampling_backend
    original(server_args)
    if asked is not None:
        declare_resolution(server_args, "hive", sampling_backend=asked)


def around_repr(original: Callable[[Any], str], self: Any) -> str:
    """Redact keys and passwords: SGLang logs its arguments at startup."""
    text = original(self)
    for name in SECRETS:
        if value := getattr(self, name, None):
            text = text.replace(f"{name}={value!r}", f"{name}={HIDDEN!r}")
    return text


def around_server_args_for_logging(
    original: Callable[[Any], dict[str, Any]], server_args: Any
) -> dict[str, Any]:
    """Redact keys and passwords in what later releases log at startup."""
    shown: dict[str, Any] = without_secrets(original(server_args))
    return shown
