"""How much tests do: now, and before a release."""

from __future__ import annotations

import os

LONG = os.environ.get("HIVE_LONG_TESTS", "0") != "0"
"""Whether tests may take minutes."""


def repetitions(usual: int, long: int) -> int:
    """``usual``, or ``long`` under ``HIVE_LONG_TESTS=1``."""
    return long if LONG else usual


LAYERS = repetitions(6, 30)
"""Layers of the embedded model, 30, that servers run whose tests ask for exact sums and counts, not for good text: each
token takes a third of the time."""

LAYERS_FLAGS = ("--json-model-override-args", f'{{"num_hidden_layers": {LAYERS}}}')
