"""Stores: many runs in one SQLite file, which are listed, resumed, answered, forked and deleted."""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, cast

from hive_frontend.errors import JournalError
from hive_frontend.runs.history import Answer, answer_of, edited
from hive_frontend.runs.lock import RunLock, is_locked
from hive_frontend.runs.log import Entry, Log
from hive_frontend.runs.questions import Question
from hive_frontend.wire import check_name

Status = Literal["running", "waiting", "stopped", "failed", "finished"]
"""`running`: a process executes it; `waiting`: it waits for answers of people; `stopped`: it ended before its end, and
can be resumed; `failed`: an error ended it, and it can be resumed, too."""

_FORMAT = 1
_BUSY_S = 30.0
_SCHEMA = f"""
PRAGMA journal_mode = WAL;
BEGIN;
CREATE TABLE runs (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, agent TEXT NOT NULL, ended TEXT, outcome TEXT,
    forked_from TEXT, created REAL NOT NULL, updated REAL NOT NULL);
CREATE TABLE entries (
    number INTEGER PRIMARY KEY, run INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE, entry TEXT NOT NULL);
CREATE INDEX entries_of_runs ON entries (run);
CREATE TABLE questions (
    run INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE, at TEXT NOT NULL, question TEXT NOT NULL,
    entry TEXT NOT NULL, PRIMARY KEY (run, at));
PRAGMA user_version = {_FORMAT};
COMMIT;
"""


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run in a store."""

    id: str
    agent: str
    arguments: Mapping[str, str]
    """The arguments of the agent as text, shortened."""
    status: Status
    outcome: str | None
    """The `repr` of its best result, or the error that ended it."""
    questions: tuple[Question, ...]
    """The questions that people have not answered yet."""
    forked_from: str | None
    """The run, and the answer that was replaced, such as `monday at 0.1`."""
    created: datetime
    updated: datetime


class RunStore:
    """Runs in a SQLite file, for `run(..., store=)`.

    Any number of processes may use one store. All methods raise `JournalError` for a run that is not there. Results of
    tools may be stored as pickles, and a resumed run unpickles them, so resume only from stores that you trust.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"RunStore({str(self.path)!r})"

    def runs(self, status: Status | None = None) -> list[StoredRun]:
        """Return all runs, or those with one status, oldest first."""
        with self._connected() as connection:
            rows = connection.execute("SELECT * FROM runs ORDER BY number").fetchall()
            found = [self._stored(connection, row) for row in rows]
        return [run for run in found if status in (None, run.status)]

    def get(self, run: str) -> StoredRun:
        """Return one run."""
        with self._connected() as connection:
            return self._stored(connection, self._row(connection, run))

    def history(self, run: str) -> list[Answer]:
        """Return the answers that a run got, in the order of their arrival."""
        with self._connected() as connection:
            entries = _entries(connection, self._row(connection, run)["number"])
        return [answer_of(entry) for entry in entries if "key" in entry]

    def answer(self, run: str, at: str, answer: object) -> None:
        """Answer the question at `at` of a run, as text or as a value. The run gets the answer when it is resumed.

        Raises:
            JournalError: if the run has no such question.
            ValueError: if the answer does not fit.
        """
        with self._connected() as connection, _transaction(connection):
            number = self._row(connection, run)["number"]
            row = connection.execute(
                "SELECT * FROM questions WHERE run = ? AND at = ?", (number, at)
            ).fetchone()
            if row is None:
                open_ones = [question.at for question in _questions(connection, number)]
                raise JournalError(
                    f"run {run!r} has no open question at {at!r}; "
                    + (f"it has questions at {', '.join(open_ones)}" if open_ones else "it has none at all")
                )
            fields = json.loads(row["question"])
            value = Question.from_json(fields).parse(answer)
            _add(connection, number, {**json.loads(row["entry"]), "human": value, "question": fields})
            connection.execute("UPDATE runs SET updated = ? WHERE number = ?", (time.time(), number))

    def fork(self, run: str, at: str, value: Any, *, run_id: str | None = None) -> str:
        """Make a new run that got another answer at `at`, and return its id. Resume it to see what follows.

        `at` is that of an `Answer` of `history`: the id of the state that the answer led to. The new run has
        everything that was recorded before this answer, and what was recorded later in branches that do not come from
        it. `value` is the text of a model, the JSON result of a tool, or the answer of a person.

        Raises:
            JournalError: if the run has no answer at `at`, or one that cannot be replaced by this value.
            ValueError: if it is not an answer to the question of a person.
        """
        new = f"{run}-{secrets.token_hex(4)}" if run_id is None else check_name("run_id", run_id)
        with self._connected() as connection, _transaction(connection):
            row = self._row(connection, run)
            header, *entries = edited(_entries(connection, row["number"]), at, value)
            number = _create(connection, new, row["agent"], f"{run} at {at}")
            if number is None:
                raise JournalError(
                    f"{self.path} has a run {new!r} already; give another run_id, or delete that run"
                )
            # Tools that are called from here on act for another run.
            _add(connection, number, {**header, "run": secrets.token_hex(16)}, *entries)
        return new

    def delete(self, run: str) -> None:
        """Delete a run; `JournalError` if it is being executed."""
        with self._connected() as connection:
            number = self._row(connection, run)["number"]
            lock = self._lock(number)
            if not lock.take():
                raise _executed(self.path, run)
            try:
                connection.execute("DELETE FROM runs WHERE number = ?", (number,))
            finally:
                lock.release(delete=True)

    @contextmanager
    def log(self, run: str | None, agent: str) -> Iterator[StoreLog]:
        """Lock a run, and yield its log. A run that is not in the store is added; with None it gets an id.

        Raises:
            JournalError: if the run is being executed.
        """
        id = f"{agent}-{secrets.token_hex(4)}" if run is None else check_name("run_id", run)
        with closing(self._connection(create=True)) as connection:
            with _reported(self.path):
                lock, number = self._locked(connection, id, agent)
            log = StoreLog(self.path, connection, id, number)
            try:
                yield log
            except Exception as error:
                log.fail(error)
                raise
            finally:
                lock.release()

    def _locked(self, connection: sqlite3.Connection, run: str, agent: str) -> tuple[RunLock, int]:
        """Return the lock and the number of a run, which is added if it is new."""
        while True:
            with _transaction(connection):
                _create(connection, run, agent, None)
                number: int = self._row(connection, run)["number"]
            lock = self._lock(number)
            if not lock.take():
                raise _executed(self.path, run)
            if connection.execute("SELECT 1 FROM runs WHERE number = ?", (number,)).fetchone():
                return lock, number
            lock.release(delete=True)  # The run has just been deleted.

    def _lock(self, number: int) -> RunLock:
        return RunLock(self._lock_file(number))

    def _lock_file(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}-locks") / str(number)

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        with closing(self._connection(create=False)) as connection, _reported(self.path):
            yield connection

    def _connection(self, *, create: bool) -> sqlite3.Connection:
        if not create and not self.path.exists():
            raise JournalError(
                f"the store {self.path} does not exist; check the path, or run(..., store=) to make it"
            )
        with _reported(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None)
            try:
                self._prepare(connection)
            except BaseException:
                connection.close()
                raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.row_factory = sqlite3.Row
        if _is_empty(connection):
            # Only one process makes the tables. SQLite's own locks do not cover the change of the journal mode.
            with self._lock(0).held():
                if _is_empty(connection):
                    connection.executescript(_SCHEMA)
        (format,) = connection.execute("PRAGMA user_version").fetchone()
        if format != _FORMAT:
            raise JournalError(
                f"{self.path} is not a store of runs of this version of Hive (format {format}, not {_FORMAT}); "
                "give another file"
            )
        connection.execute("PRAGMA foreign_keys = ON")
        # In WAL mode this survives the end of the process, as a journal file does, and a crash of the machine loses the
        # last entries at most.
        connection.execute("PRAGMA synchronous = NORMAL")

    def _row(self, connection: sqlite3.Connection, run: str) -> sqlite3.Row:
        row: sqlite3.Row | None = connection.execute("SELECT * FROM runs WHERE id = ?", (run,)).fetchone()
        if row is None:
            raise JournalError(f"{self.path} has no run {run!r}; list the runs to see their ids")
        return row

    def _stored(self, connection: sqlite3.Connection, row: sqlite3.Row) -> StoredRun:
        questions = tuple(_questions(connection, row["number"]))
        status: Status = row["ended"] or ("waiting" if questions else "stopped")
        if status != "finished" and is_locked(self._lock_file(row["number"])):
            status = "running"
        _, header = next(_texts(connection, row["number"]), (0, "{}"))
        arguments = json.loads(header).get("arguments", {})
        return StoredRun(
            id=row["id"],
            agent=row["agent"],
            arguments={name: text for name, (text, _) in arguments.items()},
            status=status,
            outcome=row["outcome"],
            questions=questions,
            forked_from=row["forked_from"],
            created=datetime.fromtimestamp(row["created"], UTC),
            updated=datetime.fromtimestamp(row["updated"], UTC),
        )


class StoreLog(Log):
    """The entries of one run in a store, and its status."""

    other = "another run_id"

    def __init__(self, path: Path, connection: sqlite3.Connection, run: str, number: int) -> None:
        self.run = run
        self.name = f"run {run!r} of {path}"
        self._path = path
        self._connection = connection
        self._number = number
        self._begun = False
        self._read_to = 0
        """The number of the last entry that was read."""

    def read(self) -> Iterator[str | bytes]:
        for number, text in _texts(self._connection, self._number):
            self._read_to = number
            yield text

    def open(self) -> None:
        self._begun = True
        self._end(None, None)

    def write(self, *entries: Entry) -> None:
        # One statement is a transaction of its own.
        single = len(entries) == 1 and "human" not in entries[0]
        with _reported(self._path), nullcontext() if single else _transaction(self._connection):
            _add(self._connection, self._number, *entries)

    def ask(self, question: Question, entry: Entry) -> Entry | None:
        with _reported(self._path), _transaction(self._connection):
            # People may answer while the run is executed.
            for _, text in _texts(self._connection, self._number, self._read_to):
                if '"human"' in text and (known := json.loads(text))["key"] == list(entry["key"]):
                    return cast(Entry, known)
            self._connection.execute(
                "INSERT OR REPLACE INTO questions VALUES (?, ?, ?, ?)",
                (self._number, question.at, json.dumps(question.to_json()), json.dumps(entry)),
            )
        return None

    def finish(self, outcome: str | None, questions: tuple[Question, ...], *, stopped: bool) -> None:
        """Record that the run has ended with this outcome, or that it waits for the answers to questions.

        A run that was `stopped` early may go on, and then ask what is open now.
        """
        with _reported(self._path), _transaction(self._connection):
            asked = {question.at for question in questions}
            for question in _questions(self._connection, self._number):
                if question.at not in asked and not stopped:  # Its branch was dropped.
                    self._connection.execute(
                        "DELETE FROM questions WHERE run = ? AND at = ?", (self._number, question.at)
                    )
            self._end(None if questions or stopped else "finished", outcome)

    def fail(self, error: Exception) -> None:
        """Record that an error has ended the run, unless it kept it from beginning."""
        if self._begun:
            self._end("failed", f"{type(error).__name__}: {error}")

    def _end(self, ended: Status | None, outcome: str | None) -> None:
        with _reported(self._path):
            self._connection.execute(
                "UPDATE runs SET ended = ?, outcome = ?, updated = ? WHERE number = ?",
                (ended, outcome, time.time(), self._number),
            )

    def close(self) -> None:
        """Do nothing: the store closes the connection."""


@contextmanager
def _reported(path: Path) -> Iterator[None]:
    """Raise errors of SQLite as `JournalError`."""
    try:
        yield
    except sqlite3.Error as error:
        raise JournalError(f"the store {path} cannot be used: {error}") from error


def _is_empty(connection: sqlite3.Connection) -> bool:
    return not connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All that the block writes is stored, or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.rollback()
        raise
    connection.commit()


def _create(connection: sqlite3.Connection, id: str, agent: str, forked_from: str | None) -> int | None:
    """Add a run, and return its number; None if there is one with this id already."""
    now = time.time()
    cursor = connection.execute(
        "INSERT OR IGNORE INTO runs (id, agent, forked_from, created, updated) VALUES (?, ?, ?, ?, ?)",
        (id, agent, forked_from, now, now),
    )
    return cursor.lastrowid if cursor.rowcount else None


def _add(connection: sqlite3.Connection, number: int, *entries: Entry) -> None:
    for entry in entries:
        connection.execute("INSERT INTO entries (run, entry) VALUES (?, ?)", (number, json.dumps(entry)))
        if "human" in entry:
            at = entry["question"]["at"]
            connection.execute("DELETE FROM questions WHERE run = ? AND at = ?", (number, at))


def _texts(connection: sqlite3.Connection, number: int, after: int = 0) -> Iterator[tuple[int, str]]:
    """Yield the entries of a run with their numbers, which grow with time."""
    rows = connection.execute(
        "SELECT number, entry FROM entries WHERE run = ? AND number > ? ORDER BY number", (number, after)
    )
    return ((row["number"], row["entry"]) for row in rows)


def _entries(connection: sqlite3.Connection, number: int) -> list[Entry]:
    return [json.loads(text) for _, text in _texts(connection, number)]


def _questions(connection: sqlite3.Connection, number: int) -> list[Question]:
    rows = connection.execute("SELECT question FROM questions WHERE run = ? ORDER BY at", (number,))
    return [Question.from_json(json.loads(row["question"])) for row in rows]


def _executed(path: Path, run: str) -> JournalError:
    return JournalError(
        f"run {run!r} of {path} is being executed, by this or another process: wait for its end, or end that process"
    )
