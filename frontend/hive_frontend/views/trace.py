"""Traces: a file with every event of a run as a line of JSON."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import IO

from hive_frontend.search.events import Event


class Trace:
    """Writes the events of one run as they happen, so that the file can be followed."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._file: IO[str] | None = None

    def __enter__(self) -> Trace:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Line-buffered: readers see whole lines only.
        self._file = self._path.open("w", encoding="utf-8", buffering=1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def on_event(self, event: Event) -> None:
        """Write one event: its own fields and those of its progress in one object."""
        if self._file is None:
            return
        fields = {name: value for name, value in asdict(event).items() if value is not None}
        line = {**fields.pop("progress"), **fields}
        # A score may be infinite, for which JSON has no number.
        line = {
            name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in line.items()
        }
        self._file.write(json.dumps(line) + "\n")
