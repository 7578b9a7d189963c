"""The journal of a run: every answer that it got from outside, so that it can be gone through again.

A run is determined by its program, its arguments, its seed and the answers of models and tools. The journal
keeps all of these, a line of JSON each, written as the answers come. A run that was killed is resumed by
running its program again with the answers of the journal, up to where they end, and a finished run is
replayed offline in the same way. This asks of agent code what a search asks of it anyway: that what it does
between awaits depends on nothing but its data.

States are not kept themselves: they hold whatever objects a program uses, few of which can be pickled, and a
file of answers can be read, searched and compared.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from hive_frontend.client.cached_message import CachedMessage
from hive_frontend.client.reply import Reply
from hive_frontend.errors import JournalError
from hive_frontend.operations.transition import Asked, Key, Shown
from hive_frontend.search.fingerprint import differences, fingerprint

_FORMAT = 2


class Journal:
    """A journal in a file, begun or continued.

    `offline` forbids to add to it: an answer that it lacks is a `JournalError`.

    With every answer stands what was asked. A run that asks for something else than it did at the same place is
    told so, since the answer is none to that (`JournalError`).

    Results of tools that JSON cannot express are pickled. Unpickling runs code of whoever wrote the file, so
    open journals of your own only.
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
            raise JournalError(f"there is no recording {self.path}")
        if self.path.exists():
            self._read()
        self._read_agents = frozenset(self._agents)

    @property
    def seed(self) -> int | None:
        """The seed of the run that is continued; None for a new one."""
        return None if self._header is None else int(self._header["seed"])

    def open(self, header: Mapping[str, Any]) -> None:
        """Begin the journal of the run that `header` describes, or check that it is this run's."""
        header = {"hive_journal": _FORMAT, **header}
        if self._header is not None:
            for field, what in _FIELDS.items():
                then, now = self._header.get(field), header.get(field)
                if then != now:
                    change = f"it has {then!r}, this run {now!r}"
                    if isinstance(then, dict) and isinstance(now, dict):
                        change = differences(then, now)
                        if not change:
                            continue
                    raise JournalError(
                        f"{self.path} belongs to another run: {what} changed ({change}); "
                        "run it as it was, or give another file to begin anew"
                    )
        if self.offline:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("a", encoding="utf-8")
        if self._header is None:
            self._write(header)

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def check_agent(self, name: str, code: str) -> None:
        """Note the code of an agent that takes part, or check that it is what it was.

        Agents that share a name may all take part; one is changed if the file knows its name, but not its code.
        """
        if code in self._agents.get(name, ()):
            return
        if name in self._read_agents:
            raise JournalError(
                f"{self.path} belongs to another version of the program: agent {name!r} was changed since; "
                "undo the change, or give another file to begin anew"
            )
        self._agents.setdefault(name, set()).add(code)
        self._write({"agent": name, "code": code})

    def __contains__(self, key: Key) -> bool:
        return key in self._answers

    def missing(self, key: Key) -> JournalError:
        """The error for an answer that an offline run lacks."""
        return JournalError(
            f"{self.path} has no answer for state {key.state}, firing {key.firing}: the recorded run did not "
            "go there"
        )

    def reply(self, key: Key, asked: Asked) -> Reply | None:
        """The model's answer to the call `key`; None if it is not known."""
        found = self._answer(key, asked)
        return None if found is None else Reply(*found["reply"])

    def add_reply(self, key: Key, asked: Asked, reply: Reply) -> None:
        """Keep the model's answer to the call `key`."""
        self._add(key, asked, {"reply": reply.to_json()})

    def message(self, key: Key, asked: Asked) -> CachedMessage | None:
        """The message that the call `key` made; None if it is not known."""
        found = self._answer(key, asked)
        return None if found is None else CachedMessage.from_json(found["message"])

    def add_message(self, key: Key, asked: Asked, message: CachedMessage) -> None:
        """Keep what is known of the message that the call `key` made."""
        self._add(key, asked, {"message": message.to_json()})

    def result(self, key: Key, asked: Asked) -> Any:
        """What the function returned that was called as `key`; `KeyError` if that is not known."""
        found = self._answer(key, asked)
        if found is None:
            raise KeyError(key)
        return found["json"] if "json" in found else _unpickle(found["pickle"])

    def add_result(self, key: Key, asked: Asked, result: Any, changed: Sequence[str] = ()) -> None:
        """Keep the result of a function, and what it has `changed` of what the agent holds."""
        entry = {"changed": list(changed)} if changed else {}
        if _is_json(result):
            self._add(key, asked, {**entry, "json": result})
            return
        try:
            self._add(key, asked, {**entry, "pickle": _pickle(result)})
        except Exception as error:
            raise JournalError(
                f"{self.path}: the result of a tool, of type {type(result).__name__}, cannot be kept "
                f"({error}); let the tool return plain data"
            ) from error

    def has_error(self, transition: Key) -> bool:
        """Whether something was raised at the await of a transition, or in a part of it."""
        return _error_key(transition) in self._answers

    def error(self, transition: Key, asked: Asked) -> BaseException | None:
        """What was raised at the await of a transition, and dealt with by the agent; None if nothing was."""
        found = self._answer(_error_key(transition), asked)
        return None if found is None else _unpickle(found["raised"])

    def add_error(
        self, transition: Key, asked: Asked, error: BaseException, changed: Sequence[str] = ()
    ) -> None:
        """Keep what an agent dealt with. What cannot be pickled is left out: the operation is done again."""
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
        """The answer that is known; `JournalError` where it is one to something else, or was not all that came of
        it."""
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
                f"{self.path} has an answer for state {key.state}, firing {key.firing}, but to something else: "
                f"{difference}. Undo the change, or give another file to begin anew"
            )
        if changed := found.get("changed"):
            raise JournalError(
                f"{self.path}: the tool that was called in state {key.state}, firing {key.firing}, changed "
                f"{' and '.join(changed)}, which a run that goes on from here would not have. Let the tool return "
                "what is new, or give it redo=True if it may be called again; and another file to begin anew"
            )
        return found

    def _add(self, key: Key, asked: Asked, answer: Mapping[str, Any]) -> None:
        """Keep an answer, with what was asked."""
        short = {}
        for name, what in asked.items():
            short[name] = self._short(what)
            if isinstance(what, Mapping) and short[name][1] not in self._code:
                self._code[short[name][1]] = dict(what)
                self._write({"code": short[name][1], "parts": what})
        self._write({"key": key, "asked": short, **answer})

    def _short(self, what: Shown | Mapping[str, Shown]) -> Shown:
        """What stands in the file with each answer: code stands there once."""
        return ["", fingerprint(what)] if isinstance(what, Mapping) else list(what)

    def _write(self, entry: Mapping[str, Any]) -> None:
        if self._file is None:
            return
        self._file.write(json.dumps(entry) + "\n")
        # What the operating system has survives the end of the process, if not that of the machine.
        self._file.flush()

    def _read(self) -> None:
        whole = 0
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    break  # The process ended in the middle of this line.
                try:
                    self._take(json.loads(line), number)
                except (ValueError, KeyError, TypeError) as error:
                    raise JournalError(
                        f"{self.path}:{number}: this is no line of a journal: {error!r}"
                    ) from None
                whole += len(line)
        if whole < self.path.stat().st_size and not self.offline:
            os.truncate(self.path, whole)

    def _take(self, entry: dict[str, Any], number: int) -> None:
        if number == 1:
            if entry["hive_journal"] != _FORMAT:
                raise JournalError(f"{self.path} has format {entry['hive_journal']}, not {_FORMAT}")
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
    """Whether JSON gives back exactly this value: no tuples, no keys that are not strings."""
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
