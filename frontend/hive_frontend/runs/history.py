"""The history of a run: the answers that it got, and how one is replaced."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hive_frontend.client.reply import Reply
from hive_frontend.errors import JournalError
from hive_frontend.operations.transition import Key
from hive_frontend.runs.log import Entry
from hive_frontend.runs.questions import Question

Kind = Literal["model", "tool", "human", "message", "error"]
_RAISED = "raised"


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer from outside of the program."""

    at: str
    """The id of the state that it led to, such as `0.1`; in a `gather` with the number of the part: `0.1/2`."""
    kind: Kind
    """Who answered: a `model`, a `tool` or a `human`. `message`: a server made a message. `error`: the operation raised
    an error, which the agent handled."""
    request: str
    """What was asked, shortened: the prompt, the question, or the tool with its arguments."""
    value: Any
    """The text of a model, the answer of a person, or the result of a tool; the text `<pickled>` if it is not plain
    data."""


def answer_of(entry: Entry) -> Answer:
    """Return the answer in an entry that has a `key`."""
    at = Key(*entry["key"]).at
    if "raised" in entry:
        return Answer(at, "error", _request(entry["asked"]), "<pickled>")
    if "reply" in entry:
        return Answer(at, "model", _request(entry["asked"]), entry["reply"][0])
    if "human" in entry:
        return Answer(at, "human", entry["question"]["text"], entry["human"])
    if "message" in entry:
        return Answer(at, "message", _request(entry["asked"]), "")
    return Answer(at, "tool", _request(entry["asked"]), entry.get("json", "<pickled>"))


def _request(asked: Mapping[str, Sequence[str]]) -> str:
    shown = [f"{name} {text}" for name, (text, _) in asked.items() if text and not name.startswith("the ")]
    main = [asked[name][0] for name in ("the prompt", "the tool") if name in asked]
    return ", ".join(main + (shown if "the tool" in asked else []))


def edited(entries: Sequence[Entry], at: str, value: Any) -> list[Entry]:
    """Return the entries of a run in which the answer at `at` was `value`.

    These are all that were written before that answer, and of those written after it the ones of other branches.

    Raises:
        JournalError: if there is no answer at `at`, or one that cannot be replaced by the value.
    """
    place = next((n for n, entry in enumerate(entries) if "key" in entry and answer_of(entry).at == at), None)
    if place is None:
        raise JournalError(f"the run has no answer at {at!r}; its history lists them")
    old = entries[place]
    key = Key(*old["key"])
    later = [
        entry for entry in entries[place + 1 :] if "key" not in entry or not _follows(Key(*entry["key"]), key)
    ]
    return [*entries[:place], _replaced(old, at, value), *later]


def _replaced(old: Entry, at: str, value: Any) -> Entry:
    new = {"key": old["key"], "asked": old["asked"]}
    match answer_of(old).kind:
        case "model":
            if not isinstance(value, str):
                raise JournalError(
                    f"the answer of a model, at {at}, is text, not {value!r}; write a typed answer as its JSON text"
                )
            return {**new, "reply": Reply(value, finish_reason="stop").to_json()}
        case "human":
            question = Question.from_json(old["question"])
            return {**new, "human": question.parse(value), "question": old["question"]}
        case "tool":
            try:
                same = json.loads(json.dumps(value)) == value
            except (TypeError, ValueError):
                same = False
            if not same:
                raise JournalError(
                    f"the new result of the tool at {at} must be plain JSON data, not {value!r}"
                )
            return {**new, "json": value}
        case kind:
            raise JournalError(
                f"the answer at {at} is {'an error' if kind == 'error' else 'a message of the server'}, which cannot "
                "be replaced by a value; choose an answer of a model, a tool or a person"
            )


def _follows(later: Key, key: Key) -> bool:
    """Whether an answer that was recorded after the one at `key` may depend on it.

    Branches do not see each other, so only what lies below the transition of the run's own agent can, and what a
    supervisor asked.
    """
    if later.state.startswith("h:") or key.state.startswith("h:"):
        return True  # Ids of long paths do not show the path.
    own = _own_path(key)
    path = _numbers(later)
    return path[: len(own)] == own or (len(path) > 1 and path[1] < 0)


def _own_path(key: Key) -> list[int]:
    """Return the path of the state that a transition of the run's own agent leads to, within which `key` is."""
    path = _numbers(key)
    return path[: next((n for n, number in enumerate(path) if number < 0), len(path))]


def _numbers(key: Key) -> list[int]:
    return [*map(int, key.state.split(".")), key.firing]
