"""Logs: where a journal keeps its entries, in the order in which they were written. `FileLog` is one in a file."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from hive_frontend.errors import JournalError
from hive_frontend.runs.questions import Question

Entry = dict[str, Any]


class Log(ABC):
    """The entries of one run, each a JSON object."""

    name: str
    """For messages."""
    other: str
    """What a user gives instead to start a new run, such as "another file"."""

    @abstractmethod
    def read(self) -> Iterator[str | bytes]:
        """Yield the text of all whole entries."""

    @abstractmethod
    def open(self) -> None:
        """Begin to write."""

    @abstractmethod
    def write(self, *entries: Entry) -> None:
        """Write entries together. They survive the end of the process, though not a crash of the machine."""

    @abstractmethod
    def ask(self, question: Question, entry: Entry) -> Entry | None:
        """Keep an open question; return the entry with its answer if there is one already.

        `entry` is what an entry with the answer has besides the answer.
        """

    @abstractmethod
    def close(self) -> None:
        """End writing."""


class FileLog(Log):
    """A file with a line of JSON for each entry."""

    other = "another file"

    def __init__(self, path: str | os.PathLike[str], *, offline: bool = False) -> None:
        self.path = Path(path)
        self.name = str(path)
        self._offline = offline
        self._file: IO[str] | None = None
        if offline and not self.path.exists():
            raise JournalError(
                f"the recording {path} does not exist; check the path, or record a run first with checkpoint="
            )

    def read(self) -> Iterator[str | bytes]:
        if not self.path.exists():
            return
        whole = 0
        with self.path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break  # The process ended while it wrote this line.
                yield line
                whole += len(line)
        if whole < self.path.stat().st_size and not self._offline:
            os.truncate(self.path, whole)

    def open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("a", encoding="utf-8")

    def write(self, *entries: Entry) -> None:
        assert self._file is not None
        self._file.write("".join(json.dumps(entry) + "\n" for entry in entries))
        self._file.flush()

    def ask(self, question: Question, entry: Entry) -> Entry | None:
        return None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
