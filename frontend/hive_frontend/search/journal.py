"""The journal of a run: a file of all answers of models and tools, from which the run can be resumed or replayed.

A run is determined by its program, its arguments, its seed and the answers of models and tools. The journal stores
these as one line of JSON each, written as the answers arrive. To resume a run that was killed, the program runs again
with the answers of the journal until they end. A finished run is replayed offline in the same way. This needs what a
search needs anyway: between awaits, agent code depends on its data only.

The journal does not store states. They hold arbitrary objects, many of which cannot be pickled, whereas a file of
answers can be read, searched and compared.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from hive_frontend.client.cached_message import CachedMessage
from hive_frontend.client.reply import Reply
from hive_frontend.errors import JournalError
from hive_frontend.operations.transition import Asked, Key, Shown
from hive_frontend.search.fingerprint import differences, fingerprint

_FORMAT = 2


class Journal:
    """A journal in a file, new or continued.

    With `offline`, nothing is added to it, and a missing answer raises `JournalError`.

    The request is stored with every answer. If a resumed run makes another request at the same place, the stored
    answer does not apply, and `JournalError` says what differs.

    Results of tools that JSON cannot express are pickled. Unpickling runs code that the author of the file chose,
    so open only journals that you trust.
    """

    def __init__(self, path: str | os.PathLike[str], *, offline: bool = False) -> None:
        self.path = Path(path)
        self.offline = offline
        self._answers: dict[Key, dict[str, Any]] = {}
        self._agents: dict[str, set[str]] = {}
        self._code: dict[str, dict[str, Shown]] = {}
        """The code of tools, by fingerprint."""
        self._header: dict[str, Any] | None = None
        self._file: IO[str] | None = None
        if offline and not self.path.exists():
            raise JournalError(
                f"the recording {self.path} does not exist; check the path, or record a run first with checkpoint="
            )
        if self.path.exists():
            self._read()
        self._read_agents = frozenset(self._agents)

    @property
    def seed(self) -> int | None:
        """The seed of the run that is continued; None for a new run."""
        return None if self._header is None else int(self._header["seed"])

    def open(self, header: Mapping[str, Any]) -> None:
        """Start the journal of the run that `header` describes, or check that the file belongs to that run.

        Raises:
            JournalError: if the file belongs to another run; names what changed.
        """
        header = {"hive_journal": _FORMAT, **header}
        if self._header is not None:
            for field, what in _FIELDS.items():
                then, now = self._header.get(field), header.get(field)
                if then != now:
                    change = f"the file has {then!r}, this run {now!r}"
                    if isinstance(then, dict) and isinstance(now, dict):
                        change = differences(then, now)
                        if not change:
                            continue
                    raise JournalError(
                        f"{self.path} belongs to another run: {what} changed ({change}); "
                        "undo the change, or give another file to start a new run"
                    )
        if self.offline:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("a", encoding="utf-8")
        if self._header is None:
            self._write(header)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def check_agent(self, name: str, code: str) -> None:
        """Record the code of an agent of this run, or check that it has not changed.

        Several agents may share a name. An agent has changed if the file has its name but not its code.
        """
        if code in self._agents.get(name, ()):
            return
        if name in self._read_agents:
            raise JournalError(
                f"{self.path} belongs to another version of the program: agent {name!r} was changed since; "
                "undo the change, or give another file to start a new run"
            )
        self._agents.setdefault(name, set()).add(code)
        self._write({"agent": name, "code": code})

    def __contains__(self, key: Key) -> bool:
        return key in self._answers

    def missing(self, key: Key) -> JournalError:
        """Return the error for an answer that an offline run does not find."""
        return JournalError(
            f"{self.path} has no answer for state {key.state}, firing {key.firing}: the recorded run ended before "
            "it, or did not fire it; use checkpoint= with a model to continue the run"
        )

    def reply(self, key: Key, asked: Asked) -> Reply | None:
        """Return the stored answer of the model to the call `key`, or None."""
        found = self._answer(key, asked)
        return None if found is None else Reply(*found["reply"])

    def add_reply(self, key: Key, asked: Asked, reply: Reply) -> None:
        """Store the model's answer to the call `key`."""
        self._add(key, asked, {"reply": reply.to_json()})

    def message(self, key: Key, asked: Asked) -> CachedMessage | None:
        """Return the stored message that the call `key` made, or None."""
        found = self._answer(key, asked)
        return None if found is None else CachedMessage.from_json(found["message"])

    def add_message(self, key: Key, asked: Asked, message: CachedMessage) -> None:
        """Store the message that the call `key` made."""
        self._add(key, asked, {"message": message.to_json()})

    def result(self, key: Key, asked: Asked) -> Any:
        """Return the stored result of the function call `key`.

        Raises:
            KeyError: if there is none.
        """
        found = self._answer(key, asked)
        if found is None:
            raise KeyError(key)
        return found["json"] if "json" in found else _unpickle(found["pickle"])

    def add_result(self, key: Key, asked: Asked, result: Any, changed: Sequence[str] = ()) -> None:
        """Store the result of a function call, and the names of the agent's variables that it `changed`."""
        entry = {"changed": list(changed)} if changed else {}
        if _is_json(result):
            self._add(key, asked, {**entry, "json": result})
            return
        try:
            self._add(key, asked, {**entry, "pickle": _pickle(result)})
        except Exception as error:
            raise JournalError(
                f"{self.path}: the result of a tool, of type {type(result).__name__}, cannot be stored "
                f"({error}); return plain data or picklable objects from the tool"
            ) from error

    def has_error(self, transition: Key) -> bool:
        """Whether the operation of a transition, or of a part of it, raised an error."""
        return _error_key(transition) in self._answers

    def error(self, transition: Key, asked: Asked) -> BaseException | None:
        """Return the stored error that the operation of a transition raised and the agent handled, or None."""
        found = self._answer(_error_key(transition), asked)
        return None if found is None else _unpickle(found["raised"])

    def add_error(
        self, transition: Key, asked: Asked, error: BaseException, changed: Sequence[str] = ()
    ) -> None:
        """Store an error that an agent handled. Errors that cannot be pickled are left out: a resumed run performs
        the operation again."""
        key = _error_key(transition)
        if key in self._answers:
            return
        try:
            raised = _pickle(error)
            _unpickle(raised)
        except Exception:
            return
        self._add(key, asked, {**({"changed": list(changed)} if changed else {}), "raised": raised})

    def _answer(self, key: Key, asked: Asked) -> dict[str, Any] | None:
        """Return the stored answer, or None.

        Raises:
            JournalError: if it answers another request, or if the tool also changed variables of the agent.
        """
        found = self._answers.get(key)
        if found is None:
            return None
        now = {name: self._short(what) for name, what in asked.items()}
        if difference := differences(found["asked"], now):
            then_code, code = found["asked"].get("code"), asked.get("code")
            if then_code and isinstance(code, Mapping):
                then = {name: what for name, what in found["asked"].items() if name != "code"}
                now.pop("code", None)
                known = self._code.get(then_code[1], {})
                difference = "; ".join(filter(None, [differences(then, now), differences(known, code)]))
            raise JournalError(
                f"{self.path} has an answer for state {key.state}, firing {key.firing}, but to another request: "
                f"{difference}. Undo the change, or give another file to start a new run"
            )
        if changed := found.get("changed"):
            raise JournalError(
                f"{self.path}: the tool that was called in state {key.state}, firing {key.firing}, changed "
                f"{' and '.join(changed)}. A resumed run does not call the tool again and would miss this change. "
                "Return the new value from the tool, or give it rerun=True if it may be called again; then give "
                "another file to start a new run"
            )
        return found

    def _add(self, key: Key, asked: Asked, answer: Mapping[str, Any]) -> None:
        """Store an answer together with its request."""
        short = {}
        for name, what in asked.items():
            short[name] = self._short(what)
            if isinstance(what, Mapping) and short[name][1] not in self._code:
                self._code[short[name][1]] = dict(what)
                self._write({"code": short[name][1], "parts": what})
        self._write({"key": key, "asked": short, **answer})

    def _short(self, what: Shown | Mapping[str, Shown]) -> Shown:
        """Return the description that the file has with each answer. Code is stored once, and referred to."""
        return ["", fingerprint(what)] if isinstance(what, Mapping) else list(what)

    def _write(self, entry: Mapping[str, Any]) -> None:
        if self._file is None:
            return
        self._file.write(json.dumps(entry) + "\n")
        # Flushed data survives the end of the process, though not a crash of the machine.
        self._file.flush()

    def _read(self) -> None:
        whole = 0
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    break  # The process ended while it wrote this line.
                try:
                    self._take(json.loads(line), number)
                except (ValueError, KeyError, TypeError) as error:
                    raise JournalError(
                        f"{self.path}:{number}: this is not a line of a journal ({error!r}); give a file that a run "
                        "wrote with checkpoint="
                    ) from None
                whole += len(line)
        if whole < self.path.stat().st_size and not self.offline:
            os.truncate(self.path, whole)

    def _take(self, entry: dict[str, Any], number: int) -> None:
        if number == 1:
            if entry["hive_journal"] != _FORMAT:
                raise JournalError(
                    f"{self.path} has journal format {entry['hive_journal']}, this version of Hive reads format "
                    f"{_FORMAT}; give another file to start a new run"
                )
            self._header = entry
        elif "agent" in entry:
            self._agents.setdefault(entry["agent"], set()).add(entry["code"])
        elif "parts" in entry:
            self._code[entry["code"]] = entry["parts"]
        else:
            state, firing, part = entry["key"]
            self._answers[Key(state, firing, part)] = entry


_FIELDS = {
    "agent": "the agent",
    "arguments": "the arguments",
    "seed": "the seed",
    "supervisor": "the supervisor",
}


def _error_key(transition: Key) -> Key:
    part = f"{transition.part} raised" if transition.part else "raised"
    return Key(transition.state, transition.firing, part)


def _is_json(value: Any) -> bool:
    """Whether JSON round-trips this value exactly: no tuples, and only strings as keys."""
    kind = type(value)
    if kind is list:
        return all(map(_is_json, value))
    if kind is dict:
        return all(type(key) is str and _is_json(item) for key, item in value.items())
    return kind in (str, int, bool, type(None)) or (kind is float and value - value == 0)


def _pickle(value: Any) -> str:
    return base64.b64encode(pickle.dumps(value)).decode("ascii")


def _unpickle(text: str) -> Any:
    return pickle.loads(base64.b64decode(text))
