"""The file of an evaluation: one line of JSON for each finished case, from which a killed evaluation is resumed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from hive_frontend.errors import JournalError
from hive_frontend.evaluation.report import Case
from hive_frontend.operations.transition import Shown
from hive_frontend.search.fingerprint import differences

_FORMAT = 1


class CaseFile:
    """A file of cases, new or continued.

    `settings` are what the cases depend on, each as text and fingerprint: a file with other ones raises
    `JournalError`.
    """

    def __init__(self, path: str | os.PathLike[str], settings: Mapping[str, Shown]) -> None:
        self.path = Path(path)
        self.cases: dict[tuple[str, int, int], Case] = {}
        """The finished cases, by arm, item and repetition. Cases with errors are left out, so that they run again."""
        self._settings = dict(settings)
        self._file: IO[str] | None = None

    def __enter__(self) -> CaseFile:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        whole = self._read() if self.path.exists() else 0
        self._file = self.path.open("a", encoding="utf-8")
        # The process may have been killed while it wrote the last line.
        self._file.truncate(whole)
        if not whole:
            self._write({"hive_evaluation": _FORMAT, "settings": self._settings})
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, case: Case) -> None:
        self._write(case.model_dump(mode="json"))

    def _write(self, line: Mapping[str, Any]) -> None:
        assert self._file is not None
        self._file.write(json.dumps(line) + "\n")
        # Flushed data survives the end of the process, though not a crash of the machine.
        self._file.flush()

    def _read(self) -> int:
        """Read the cases; return the length of all complete lines in bytes."""
        whole = 0
        with self.path.open("rb") as file:
            for number, line in enumerate(file):
                if not line.endswith(b"\n"):
                    break
                try:
                    if number:
                        case = Case.model_validate_json(line)
                        if case.error is None:
                            self.cases[case.arm, case.item, case.repetition] = case
                    else:
                        self._check(json.loads(line))
                except (ValueError, KeyError, TypeError) as error:
                    raise JournalError(
                        f"{self.path}:{number + 1}: this is not a line of an evaluation ({error!r}); give a file that "
                        "an evaluation wrote with checkpoint="
                    ) from None
                whole += len(line)
        return whole

    def _check(self, header: Mapping[str, Any]) -> None:
        if header["hive_evaluation"] != _FORMAT:
            raise JournalError(
                f"{self.path} has evaluation format {header['hive_evaluation']}, this version of Hive reads format "
                f"{_FORMAT}; give another file to start a new evaluation"
            )
        if change := differences(header["settings"], self._settings):
            raise JournalError(
                f"{self.path} belongs to another evaluation: {change}; undo the change, or give another file to start "
                "a new evaluation"
            )
