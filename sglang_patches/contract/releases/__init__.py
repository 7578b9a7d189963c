"""The releases of SGLang that Hive runs on, one adapter for each: :data:`SUPPORTED` is the list.

An adapter (:class:`~sglang_patches.contract.releases.base.Release`) holds what its release does unlike the others and
nothing else.  Hooks that only some releases have are marked in :mod:`sglang_patches.contract.patches`.
``docs/upgrading.md`` says how to add a release.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang_patches.contract.releases.base import Release

SUPPORTED = ("0.5.17", "0.5.23")
"""The exact versions of SGLang, oldest first."""


class UnsupportedRelease(RuntimeError):
    """The installed SGLang is none of :data:`SUPPORTED`."""


def installed() -> str:
    """The version of the installed SGLang."""
    import sglang

    return str(sglang.__version__)


def check(version: str) -> None:
    """See that a version is supported.

    Raises:
        UnsupportedRelease: naming the supported ones.
    """
    if version not in SUPPORTED:
        raise UnsupportedRelease(
            f"SGLang {version} is installed; this Hive supports {' and '.join(SUPPORTED)}. "
            f"Run: uv pip install 'sglang=={SUPPORTED[0]}'"
        )


@cache
def current() -> Release:
    """The adapter of the installed SGLang.

    Raises:
        UnsupportedRelease: where there is none.
    """
    version = installed()
    check(version)
    module = importlib.import_module(f"{__name__}.v{version.replace('.', '_')}")
    release: Release = module.RELEASE
    return release
