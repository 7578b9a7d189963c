"""Where the keys and values of a context came from, as the server accounts for it."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any

from bench.harness.client import BenchError


@dataclass(frozen=True)
class KV:
    """Where the keys and values of a context came from, in tokens."""

    exact: int = 0
    """From the radix tree."""
    placed: int = 0
    """From stored segments, and not computed again."""
    recomputed: int = 0
    """From stored segments, and computed again by a corrector."""
    missing: int = 0
    """Computed, as nothing was stored."""

    @property
    def context(self) -> int:
        """All tokens that are accounted for."""
        return self.exact + self.placed + self.recomputed + self.missing

    def __add__(self, other: KV) -> KV:
        return KV(*map(sum, zip(astuple(self), astuple(other), strict=True)))


def kv_of(account: Any) -> KV:
    """What a server says under ``kv``. Raises `BenchError` when it says nothing of the kind."""
    try:
        return KV(**{name: int(account[name]) for name in ("exact", "placed", "recomputed", "missing")})
    except (KeyError, TypeError, ValueError):
        raise BenchError(f"the server gives no account of its KV segments: {account!r}") from None
