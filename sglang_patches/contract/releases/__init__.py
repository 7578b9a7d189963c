"""The releases of SGLang that Hive supports (:data:`SUPPORTED`), with one adapter for each.

An adapter (:class:`~sglang_patches.contract.releases.base.Release`) contains only what differs between releases.
Hooks that only one release needs are marked in :mod:`sglang_patches.contract.patches`. ``docs/upgrading.md`` says how
to add a release.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang_patches.contract.releases.base import Release

SUPPORTED = ("0.5.17", "0.5.23")
"""Exact versions of SGLang, oldest first."""


class UnsupportedRelease(RuntimeError):
    """The installed SGLang is not in :data:`SUPPORTED`."""


def installed() -> str:
    """Return the version of the installed SGLang."""
    import sglang

    return str(sglang.__version__)


def check(version: str) -> None:
    """Check that a version is supported.

    Raises:
        UnsupportedRelease: if it is not; names the supported versions.
    """
    if version not in SUPPORTED:
        raise UnsupportedRelease(
            f"SGLang {version} is installed; this Hive supports {' and '.join(SUPPORTED)}. "
            f"Run: uv pip install 'sglang=={SUPPORTED[0]}'"
        )


@cache
def current() -> Release:
    """Return the adapter of the installed SGLang.

    Raises:
        UnsupportedRelease: if the version is not supported.
    """
    version = installed()
    check(version)
    module = importlib.import_module(f"{__name__}.v{version.replace('.', '_')}")
    release: Release = module.RELEASE
    return release
