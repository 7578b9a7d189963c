"""The releases of SGLang that Hive supports (:data:`SUPPORTED`), with one adapter for each.

An adapter (:class:`~sglang_patches.contract.releases.base.Release`) contains only what differs between releases.
Hooks that not all releases need are marked in :mod:`sglang_patches.contract.patches`. ``docs/upgrading.md`` says how
to add a release.
"""

from __future__ import annotations

import importlib
import re
from functools import cache
from pkgutil import iter_modules
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang_patches.contract.releases.base import Release


def order(version: str) -> list[int]:
    """Return the key that sorts versions from the oldest to the newest."""
    return [int(number) for number in re.findall(r"\d+", version)]


SUPPORTED = tuple(
    sorted(
        (module.name[1:].replace("_", ".") for module in iter_modules(__path__) if module.name != "base"),
        key=order,
    )
)
"""Exact versions of SGLang, oldest first: each has a module here, such as ``v0_5_17``."""


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
