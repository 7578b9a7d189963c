"""Entry point ``sglang.srt.plugins``: registers the hooks of the table, and checks that they took.

SGLang calls :func:`activate` in the launching process before arguments are parsed and again in every scheduler
process.  It only logs a plugin that fails, so :func:`verify` is called where a failure can stop the start:
by ``hive.launch_server`` and at the end of ``Scheduler.__init__``.
"""

from __future__ import annotations

import importlib
import logging

from hive.server.flags.server_args import HiveServerArgs
from sglang_patches import cpu_platform, releases
from sglang_patches.patches import Patch, patches_of

logger = logging.getLogger(__name__)


class PatchError(RuntimeError):
    """A hook did not apply, or this SGLang is not the one the hooks were written for."""


def active_patches() -> tuple[Patch, ...]:
    """The patches this process needs.

    Without ``hive.launch_server`` (no settings in the environment) an installed Hive leaves SGLang stock:
    only the CPU platform's own repairs apply, and those only where that platform is active.
    """
    groups = {"cpu"} if cpu_platform.needed() else set()
    if HiveServerArgs.in_environment():
        groups.add("hive")
    return tuple(patch for patch in patches_of(releases.installed()) if patch.group in groups)


_failure: Exception | None = None
"""What stopped :func:`activate`, for :func:`verify` to report: SGLang only logs it."""


def activate() -> None:
    """Entry point ``sglang.srt.plugins``: register every active patch, and Hive's sampler, with SGLang."""
    global _failure
    try:
        _register()
    except Exception as error:
        _failure = error
        raise


def _register() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    patches = active_patches()
    try:
        releases.check(releases.installed())
    except releases.UnsupportedRelease as error:
        # Hive's own launcher refuses to start, see verify(); a stock server is left as it is.
        if patches and not HiveServerArgs.in_environment():
            logger.warning("Hive: nothing is patched: %s", error)
        return
    for patch in patches:
        module, _, name = patch.hook.partition(":")
        hook = getattr(importlib.import_module(f"sglang_patches.{module}"), name)
        HookRegistry.register(patch.target, hook, HookType(patch.kind))
    if HiveServerArgs.in_environment():
        from sglang_patches import sampler, warmup

        sampler.register()
        warmup.register()


def verify() -> None:
    """Check that every active patch was applied by SGLang.

    Raises:
        PatchError: naming the version or the symbols at fault.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry

    try:
        releases.check(releases.installed())
    except releases.UnsupportedRelease as error:
        raise PatchError(str(error)) from None
    if _failure is not None:
        raise PatchError(
            f"Hive's plugin could not be loaded: {type(_failure).__name__}: {_failure}"
        ) from _failure
    lost = [patch for patch in active_patches() if patch.target not in HookRegistry._patched]
    if lost:
        lines = "\n".join(f"  {patch.target} ({patch.kind}): {patch.breaks}" for patch in lost)
        raise PatchError(f"{len(lost)} of Hive's hooks did not apply to SGLang:\n{lines}")
