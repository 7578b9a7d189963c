"""Traces: a file with every event of a run as a line of JSON."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from hive_frontend.search.events import Event


@contextmanager
def traced_to(path: str | os.PathLike[str]) -> Iterator[Callable[[Event], object]]:
    """Open a trace; yield the function that writes an event as it happens, so that the file can be followed."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    # Line-buffered: readers see whole lines only.
    with open(path, "w", encoding="utf-8", buffering=1) as file:
        yield lambda event: file.write(_line(event) + "\n")


def _line(event: Event) -> str:
    """Return an event as JSON: its own fields and those of its progress in one object."""
    fields = {name: value for name, value in asdict(event).items() if value is not None}
    line = {**fields.pop("progress"), **fields}
    # A score may be infinite, for which JSON has no number.
    return json.dumps(
        {
            name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in line.items()
        }
    )
