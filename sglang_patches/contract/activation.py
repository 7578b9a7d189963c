"""Register the hooks of the table with SGLang, and verify that they applied."""

from __future__ import annotations

import importlib

from hive.server.flags.server_args import HiveServerArgs
from sglang_patches import cpu_platform
from sglang_patches.contract import releases
from sglang_patches.contract.patches import Patch, patches_of


class PatchError(RuntimeError):
    """A hook did not apply, or the installed SGLang is not supported."""


def active_patches() -> tuple[Patch, ...]:
    """Return the patches that this process needs.

    Without ``hive.launch_server`` (no settings in the environment), an installed Hive leaves SGLang unchanged.  Only
    the CPU platform's patches apply, and only where that platform is active.
    """
    groups = {"cpu"} if cpu_platform.needed() else set()
    if HiveServerArgs.in_environment():
        groups.add("hive")
    return tuple(patch for patch in patches_of(releases.installed()) if patch.group in groups)


def register() -> None:
    """Register every active patch with SGLang.

    Raises:
        UnsupportedRelease: if the installed release is not supported; nothing is registered then.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    releases.check(releases.installed())
    for patch in active_patches():
        module, _, name = patch.hook.partition(":")
        hook = getattr(importlib.import_module(f"sglang_patches.hooks.{module}"), name)
        HookRegistry.register(patch.target, hook, HookType(patch.kind))


_failure: Exception | None = None


def record_failure(error: Exception) -> None:
    """Record the error that stopped the plugin, for :func:`verify` to report. SGLang only logs it."""
    global _failure
    _failure = error


def verify() -> None:
    """Check that SGLang applied every active patch.

    Raises:
        PatchError: naming the unsupported version, the plugin's error or the symbols whose hooks did not apply.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry

    try:
        releases.check(releases.installed())
    except releases.UnsupportedRelease as error:
        raise PatchError(str(error)) from None
    if _failure is not None:
        raise PatchError(f"Hive's plugin failed to load: {type(_failure).__name__}: {_failure}") from _failure
    lost = [patch for patch in active_patches() if patch.target not in HookRegistry._patched]
    if lost:
        lines = "\n".join(f"  {patch.target} ({patch.kind}): {patch.breaks}" for patch in lost)
        raise PatchError(f"{len(lost)} of Hive's hooks did not apply to SGLang:\n{lines}")
