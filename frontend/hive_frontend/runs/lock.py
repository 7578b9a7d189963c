"""The lock of a run, which ends with its process however that ends."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

_WAIT_S = 0.2
"""How long `take` waits for a lock. Nobody but a running program holds one for more than an instant."""
_HELD_S = 30.0


class RunLock:
    """A lock as a file, held by one process at a time.

    The file is an empty SQLite database with an open transaction. SQLite locks files on all systems, also against other
    threads of the process, and the system drops the lock of a process that is killed.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        file.parent.mkdir(parents=True, exist_ok=True)
        self._connection = sqlite3.connect(
            file, timeout=_WAIT_S, isolation_level=None, check_same_thread=False
        )

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock during the block, after waiting for others that hold it."""
        self._connection.execute(f"PRAGMA busy_timeout = {_HELD_S * 1000:.0f}")
        self._connection.execute("BEGIN EXCLUSIVE")
        try:
            yield
        finally:
            self.release()

    def take(self) -> bool:
        """Take the lock; False if another program has it, or is just deleting it."""
        try:
            self._connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY and self._file.exists():
                raise
            self._connection.close()
            return False
        return True

    def release(self, *, delete: bool = False) -> None:
        """Release the lock; `delete` the file if nobody will take the lock again."""
        if delete:
            # Not on Windows, where an open file cannot be deleted.
            with suppress(OSError):
                self._file.unlink()
        self._connection.close()


def is_locked(file: Path) -> bool:
    """Whether a program holds this lock."""
    if not file.exists():
        return False
    with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=0)) as connection:
        try:
            connection.execute("SELECT 1 FROM sqlite_master").fetchall()
        except sqlite3.OperationalError as error:
            return error.sqlite_errorcode == sqlite3.SQLITE_BUSY
    return False
