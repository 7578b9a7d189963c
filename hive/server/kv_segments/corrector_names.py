"""The names and settings of correctors in requests and flags, without the code that runs them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hive.server.request_tag import RequestError, shown, shown_key

SETTINGS: dict[str, tuple[str, ...]] = {
    "none": (),
    "first-k": ("share", "tokens"),
    "blend": ("share", "block"),
    "recompute-all": (),
}
"""The settings of each corrector."""

DEFAULT = "first-k"
"""For spans in ordinary requests: the best corrector that takes a single pass, see ``docs/benchmarks.md``."""
DEFAULT_SHARE = 0.15


def check_corrector(spec: Any, field: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the settings of a corrector, given as a name or as an object with ``kind`` and settings.

    Raises:
        RequestError: with the invalid field (within ``field``) and its rule.
    """
    settings: dict[str, Any] = {}
    kind, where = spec, field
    if isinstance(spec, Mapping):
        settings = {key: value for key, value in spec.items() if key != "kind"}
        kind, where = spec.get("kind"), f"{field}.kind"
    if not isinstance(kind, str) or kind not in SETTINGS:
        raise RequestError(where, f"must be {' or '.join(map(repr, SETTINGS))}, got {shown(kind)}")
    for key, value in settings.items():
        _check(f"{field}.{shown_key(key)}", key, value, kind)
    if "share" in settings and "tokens" in settings:
        raise RequestError(f"{field}.tokens", "must not be given together with share")
    return kind, settings


def _check(field: str, key: Any, value: Any, kind: str) -> None:
    if key not in SETTINGS[kind]:
        known = ", ".join(SETTINGS[kind]) or "no settings"
        raise RequestError(field, f"is unknown: {kind!r} takes {known}")
    if key == "share":
        if type(value) not in (int, float) or not 0.0 <= value <= 1.0:
            raise RequestError(field, f"must be a number from 0 to 1, got {shown(value)}")
    elif type(value) is not int or not 1 <= value <= 2**31 - 1:
        raise RequestError(field, f"must be an integer of at least 1, got {shown(value)}")
