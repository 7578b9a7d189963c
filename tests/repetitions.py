"""How often a test repeats what it does: now, and before a release."""

from __future__ import annotations

import os

LONG = os.environ.get("HIVE_LONG_TESTS", "0") != "0"
"""Whether tests may take minutes."""


def repetitions(usual: int, long: int) -> int:
    """``usual``, or ``long`` under ``HIVE_LONG_TESTS=1``."""
    return long if LONG else usual
