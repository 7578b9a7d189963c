"""Correctors, one per module: which placed tokens to recompute in the context of the request.

A new corrector needs only its module: requests and ``--hive-kv-corrector`` take the ``kind`` and the ``settings`` of
each class.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from hive.server.kv_segments.correctors.base import Corrector
from hive.server.request_tag import RequestError, shown

DEFAULT = "first-k"
"""For spans in ordinary requests: the best corrector that takes a single pass, see ``docs/benchmarks.md``."""


@cache
def correctors() -> dict[str, type[Corrector]]:
    """Return the correctors by kind: those that the modules of this package define."""
    modules = [f"{__name__}.{module.name}" for module in iter_modules(__path__)]
    for module in modules:
        import_module(module)
    found = {each.kind: each for each in Corrector.__subclasses__() if each.__module__ in modules}
    return dict(sorted(found.items()))


def corrector_of(spec: Any, field: str = "corrector") -> Corrector:
    """Return the corrector of a specification: a kind, or an object with ``kind`` and settings.

    Raises:
        RequestError: with the invalid field (within ``field``) and its rule.
    """
    settings: dict[str, Any] = {}
    kind, where = spec, field
    if isinstance(spec, Mapping):
        settings = {key: value for key, value in spec.items() if key != "kind"}
        kind, where = spec.get("kind"), f"{field}.kind"
    known = correctors()
    if not isinstance(kind, str) or kind not in known:
        raise RequestError(where, f"must be {' or '.join(map(repr, known))}, got {shown(kind)}")
    return known[kind].of_request(settings, field)
