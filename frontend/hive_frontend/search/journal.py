"""The journal of a run: all answers of models, tools and people, from which the run can be resumed or replayed.

A run is determined by its program, its arguments, its seed and these answers. The journal writes each to a log, in a
file or in a store, as one entry of JSON, when it arrives. To resume a run that was killed, the program runs again
with the answers of the journal until they end. A finished run is replayed offline in the same way. This needs what a
search needs anyway: between awaits, agent code depends on its data only.

The journal does not store states. They hold arbitrary objects, many of which cannot be pickled, whereas a file of
answers can be read, searched and compared.
"""

from __future__ import annotations

import base64
import json
import pickle
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from hive_frontend.client.cached_message import CachedMessage
from hive_frontend.client.reply import Reply
from hive_frontend.errors import JournalError
from hive_frontend.operations.transition import Asked, Key, Shown
from hive_frontend.runs.log import Entry, Log
from hive_frontend.runs.questions import Question
from hive_frontend.search.fingerprint import differences, fingerprint

_FORMAT = 3


class Journal:
    """A journal in a log, new or continued.

    With `offline`, nothing is added to it, and a missing answer raises `JournalError`.

    The request is stored with every answer. If a resumed run makes another request at the same place, the stored
    answer does not apply, and `JournalError` says what differs.

    Results of tools that JSON cannot express are pickled. Unpickling runs code that the author of the file chose,
    so open only journals that you trust.
    """

    def __init__(self, log: Log, *, offline: bool = False) -> None:
        self.name = log.name
        self.offline = offline
        self._log = log
        self._writes = False
        self._answers: dict[Key, dict[str, Any]] = {}
        self._agents: dict[str, set[str]] = {}
        self._code: dict[str, dict[str, Shown]] = {}
        """The code of tools, by fingerprint."""
        self._header: dict[str, Any] | None = None
        self._read()
        self._read_agents = frozenset(self._agents)

    @property
    def seed(self) -> int | None:
        """The seed of the run that is continued; None for a new run."""
        return None if self._header is None else int(self._header["seed"])

    def open(self, header: Mapping[str, Any]) -> None:
        """Start the journal of the run that `header` describes, or check that the file belongs to that run.

        Raises:
            JournalError: if the log belongs to another run; names what changed.
        """
        header = {"hive_journal": _FORMAT, "run": secrets.token_hex(16), **header}
        if self._header is not None:
            for field, what in _FIELDS.items():
                then, now = self._header.get(field), header.get(field)
                if then != now:
                    change = f"the journal has {then!r}, this run {now!r}"
                    if isinstance(then, dict) and isinstance(now, dict):
                        change = differences(then, now)
                        if not change:
                            continue
                    raise JournalError(
                        f"{self.name} belongs to another run: {what} changed ({change}); "
                        f"undo the change, or give {self._log.other} to start a new run"
                    )
        if self.offline:
            return
        self._log.open()
        self._writes = True
        if self._header is None:
            self._header = header
            self._write(header)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._writes = False
        self._log.close()

    @property
    def run(self) -> str:
        """What distinguishes the run from all others; resuming does not change it."""
        assert self._header is not None
        return str(self._header["run"])

    def check_agent(self, name: str, code: str) -> None:
        """Record the code of an agent of this run, or check that it has not changed.

        Several agents may share a name. An agent has changed if the file has its name but not its code.
        """
        if code in self._agents.get(name, ()):
            return
        if name in self._read_agents:
            raise JournalError(
                f"{self.name} belongs to another version of the program: agent {name!r} was changed since; "
                f"undo the change, or give {self._log.other} to start a new run"
            )
        self._agents.setdefault(name, set()).add(code)
        self._write({"agent": name, "code": code})

    def __contains__(self, key: Key) -> bool:
        return key in self._answers

    def missing(self, key: Key) -> JournalError:
        """Return the error for an answer that an offline run does not find."""
        return JournalError(
            f"{self.name} has no answer for state {key.state}, firing {key.firing}: the recorded run ended before "
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
                f"{self.name}: the result of a tool, of type {type(result).__name__}, cannot be stored "
                f"({error}); return plain data or picklable objects from the tool"
            ) from error

    def answer(self, key: Key, asked: Asked) -> Entry | None:
        """Return the entry with a person's answer, as its `human`, or None."""
        return self._answer(key, asked)

    def checked(self, entry: Entry, question: Question) -> Any:
        """Return the answer in an entry, a JSON value; `JournalError` if it does not fit the question's type."""
        try:
            return question.parse(entry["human"])
        except ValueError as error:
            raise JournalError(
                f"{self.name}: {error}. Fork the run at {question.at} with another answer"
            ) from None

    def add_answer(self, key: Key, asked: Asked, question: Question, answer: Any) -> None:
        """Store a person's answer, a JSON value."""
        self._add(key, asked, {"human": answer, "question": question.to_json()})

    def ask(self, key: Key, asked: Asked, question: Question) -> Entry | None:
        """Keep an open question; return the entry with its answer if it has been answered meanwhile."""
        return self._log.ask(question, {"key": key, "asked": self._shorts(asked)})

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
        now = self._shorts(asked)
        if difference := differences(found["asked"], now):
            then_code, code = found["asked"].get("code"), asked.get("code")
            if then_code and isinstance(code, Mapping):
                then = {name: what for name, what in found["asked"].items() if name != "code"}
                now.pop("code", None)
                known = self._code.get(then_code[1], {})
                difference = "; ".join(filter(None, [differences(then, now), differences(known, code)]))
            raise JournalError(
                f"{self.name} has an answer for state {key.state}, firing {key.firing}, but to another request: "
                f"{difference}. Undo the change, or give {self._log.other} to start a new run"
            )
        if changed := found.get("changed"):
            raise JournalError(
                f"{self.name}: the tool that was called in state {key.state}, firing {key.firing}, changed "
                f"{' and '.join(changed)}. A resumed run does not call the tool again and would miss this change. "
                "Return the new value from the tool, or give it rerun=True if it may be called again; then give "
                f"{self._log.other} to start a new run"
            )
        return found

    def _add(self, key: Key, asked: Asked, answer: Mapping[str, Any]) -> None:
        """Store an answer together with its request."""
        short = self._shorts(asked)
        code: list[Entry] = []
        for name, what in asked.items():
            if isinstance(what, Mapping) and short[name][1] not in self._code:
                self._code[short[name][1]] = dict(what)
                code.append({"code": short[name][1], "parts": what})
        self._write(*code, {"key": key, "asked": short, **answer})

    def _shorts(self, asked: Asked) -> dict[str, Shown]:
        """Return the description that the log has with each answer. Code is stored once, and referred to."""
        return {
            name: ["", fingerprint(what)] if isinstance(what, Mapping) else list(what)
            for name, what in asked.items()
        }

    def _write(self, *entries: Entry) -> None:
        if self._writes:
            self._log.write(*entries)

    def _read(self) -> None:
        for number, text in enumerate(self._log.read(), start=1):
            try:
                self._take(json.loads(text), number)
            except (ValueError, KeyError, TypeError) as error:
                raise JournalError(
                    f"{self.name}:{number}: this is not a line of a journal ({error!r}); give a file that a run wrote "
                    "with checkpoint="
                ) from None

    def _take(self, entry: Entry, number: int) -> None:
        if number == 1:
            if entry["hive_journal"] != _FORMAT:
                raise JournalError(
                    f"{self.name} has journal format {entry['hive_journal']}, this version of Hive reads format "
                    f"{_FORMAT}; give {self._log.other} to start a new run"
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
