"""Lessons for the Patcher of RTL repair: which line is wrong, and what it has to read.

A lesson is a dialogue, word for word the one that `examples.rtl_repair.agents.patcher` would have had: about
a bug of `rtl_bugs`, with or without reports of the others, and after none or some patches that were undone. Both of
the Patcher's questions about a source are taught in one dialogue, as the second follows from the first. Nothing is
taught where a wrong line was chosen: no text would be right there.

Every third design by name, from the second on, is held out: nothing is taught about it. Neither are the bugs of
`bugs.json`, which experiments repair, in any design.

A small model could learn the taught designs by heart, and find bugs by comparing. So most lessons are about a source
in which names were changed, and comments and blank lines left out: the same bug, but it has to be looked for.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from bench.training.example import Example, Question
from bench.training.rtl_bugs import Studied, recorded, reports
from examples.rtl_repair import prompts
from examples.rtl_repair.bugs import committed
from examples.rtl_repair.designs import all_designs
from examples.rtl_repair.edits import Edit, code, editable_lines, replacements
from examples.rtl_repair.simulator import Simulation
from examples.rtl_repair.verilog import is_reset, read

HELD_OUT: Final = frozenset(design.name for design in all_designs()[1::3])
"""The designs that no lesson is about."""

Talk = list[dict[str, str]]
"""Messages, each with its `role` and `content`."""

_UNDONE: Final = (0.45, 0.25, 0.18, 0.12)
"""How often a lesson comes after so many patches that were undone."""
_UNCHANGED: Final = 0.25
"""How often a source is taught as it stands."""
_WORD: Final = re.compile(r"[A-Za-z_$`]\w*")


@dataclass(frozen=True)
class Chat:
    """How a server writes dialogues for a model."""

    template: Callable[[Talk], str]
    """A dialogue as the model reads it, up to where it begins to write."""
    end: str
    """What the model writes after an answer: all that a grammar admits there."""

    @classmethod
    def of(cls, tokenizer: Any) -> Chat:
        """That of a tokenizer with a chat template."""

        def template(talk: Talk) -> str:
            return str(tokenizer.apply_chat_template(talk, add_generation_prompt=True, tokenize=False))

        return cls(template, tokenizer.eos_token)

    def example(self, talk: Talk, answer: str, then: tuple[str, str] | None = None) -> Example:
        """A lesson on the answer to a dialogue, and then on another one in the same dialogue: question and answer.

        Raises `ValueError` when the dialogue with the answer does not begin with what the model read and wrote.
        """
        prompt, written = self.template(talk), answer + self.end
        if then is None:
            return Example(prompt, (written,))
        question, reply = then
        longer = self.template([*talk, _said("assistant", answer), _said("user", question)])
        if not longer.startswith(prompt + written):
            raise ValueError("the chat template writes a model's answer otherwise than the model itself does")
        following = Example(longer.removeprefix(prompt + written), (reply + self.end,))
        return Example(prompt, (written,), following)


@lru_cache(maxsize=1)
def taught() -> tuple[Studied, ...]:
    """The bugs that lessons are about."""
    test = {bug.source for bug in committed()}
    return tuple(
        each for each in recorded() if each.bug.design not in HELD_OUT and each.bug.source not in test
    )


def asked(each: int, rng: random.Random) -> tuple[list[Studied], list[Studied]]:
    """Bugs to ask about: so many of each design that is held out, and those of `bugs.json` in the other designs."""
    test = {bug.source for bug in committed()}
    unknown = [
        studied
        for name in sorted(HELD_OUT)
        for studied in rng.sample([found for found in recorded() if found.bug.design == name], each)
    ]
    known = [found for found in recorded() if found.bug.design not in HELD_OUT and found.bug.source in test]
    return unknown, known


def lessons(bugs: Iterable[Studied], chat: Chat, times: int, rng: random.Random) -> list[Example]:
    """Lessons on each bug, each phrased in so many ways."""
    names = taught_names()
    examples = []
    for studied in bugs:
        for _ in range(times):
            told = studied if rng.random() < _UNCHANGED else disguised(studied, names, rng)
            examples.append(_lesson(told, chat, rng))
    return examples


def questions(bugs: Iterable[Studied], chat: Chat) -> tuple[list[Question], list[Question]]:
    """The Patcher's first two questions about each bug: among the numbers of lines, and among texts of the right
    line."""
    lines, texts = [], []
    for studied in bugs:
        source, repair = studied.bug.source, studied.repair
        talk = dialogue(studied, [], [[]])
        lines.append(_question(chat, talk, map(str, editable_lines(source)), str(repair.line)))
        talk += [_said("assistant", str(repair.line)), _said("user", _which_text(studied, repair.line))]
        texts.append(_question(chat, talk, replacements(source, repair.line), repair.text))
    return lines, texts


def dialogue(
    studied: Studied,
    tried: Sequence[tuple[Edit, Simulation]],
    notes: Sequence[Sequence[str]],
    before: str | None = None,
) -> Talk:
    """The Patcher's dialogue about a bug up to where a number is asked for, after some patches that were undone.

    ``notes`` are the reports before each of the patches, and before the one that is asked for; ``before`` is what
    became of the last patch of an earlier dialogue about the same source, if there was one.
    """
    source = studied.bug.source
    talk = [
        _said("system", prompts.ENGINEER),
        _said("user", prompts.which_line(source, studied.result, before, notes[0])),
    ]
    for (edit, after), found in zip(tried, notes[1:], strict=True):
        talk += [
            _said("assistant", str(edit.line)),
            _said("user", _which_text(studied, edit.line)),
            _said("assistant", edit.text),
            _said("user", prompts.which_other_line(_undone(studied, edit, after), found)),
        ]
    return talk


def disguised(studied: Studied, names: Sequence[str], rng: random.Random) -> Studied:
    """The same bug in a source with some of ``names`` for its own, and without some comments and blank lines.

    Clocks and resets keep their names, which the rules of edits know. If a repair would not be offered, the bug is
    left as it was.
    """
    bug = studied.bug
    new = _renamed(bug.source, names, rng)
    kept = [
        number
        for number, line in enumerate(bug.source.split("\n"), start=1)
        if number == bug.line or line.split("//")[0].strip() or rng.random() < 0.5
    ]
    place = {number: index for index, number in enumerate(kept, start=1)}

    def word(match: re.Match[str]) -> str:
        return new.get(match[0], match[0])

    def text(old: str) -> str:
        return _WORD.sub(word, old)

    def simulation(old: Simulation) -> Simulation:
        return replace(old, log=text(old.log))

    def edit(old: Edit) -> Edit:
        return Edit(place[old.line], text(old.text))

    lines = bug.source.split("\n")
    told = Studied(
        replace(
            bug,
            line=place[bug.line],
            original=text(bug.original),
            mutated=text(bug.mutated),
            source="\n".join(text(lines[number - 1]) for number in kept),
        ),
        simulation(studied.result),
        # The linter puts names in quotes; the words around them are its own.
        re.sub(
            r"^line (\d+)|'(\w+)'",
            lambda match: f"line {place[int(match[1])]}" if match[1] else f"'{new.get(match[2], match[2])}'",
            studied.lint,
            flags=re.MULTILINE,
        ),
        tuple((edit(old), simulation(result)) for old, result in studied.wrong),
    )
    offered = all(
        each.text in replacements(told.bug.source, each.line)
        for each in (told.repair, *(each for each, _ in told.wrong))
    )
    return told if offered else studied


def taught_names() -> list[str]:
    """The names of signals and constants in the taught designs, but for clocks and resets."""
    sources = [design.source for design in all_designs() if design.name not in HELD_OUT]
    return sorted({name for source in sources for name in _own_names(source)})


def _lesson(studied: Studied, chat: Chat, rng: random.Random) -> Example:
    (many,) = rng.choices(range(len(_UNDONE)), _UNDONE)
    tried = rng.sample(studied.wrong, min(many, len(studied.wrong)))
    before = None
    if tried and rng.random() < 0.2:
        # The Patcher began a new dialogue, as after some patches it does.
        before = _undone(studied, *tried.pop())
    notes = [_notes(studied, rng) for _ in range(len(tried) + 1)]
    repair = studied.repair
    return chat.example(
        dialogue(studied, tried, notes, before),
        str(repair.line),
        then=(_which_text(studied, repair.line), repair.text),
    )


def _notes(studied: Studied, rng: random.Random) -> list[str]:
    """What Decision may have found out before a patch: nothing, or as much as two looks show."""
    if rng.random() < 0.3:
        return []
    # What a small model said about another bug is worth as much as what it would say about this one.
    said = {
        "Viewer": rng.choice(reports()["Viewer"]),
        "Minutes of the search": rng.choice(reports()["Summary"]),
        "Linter": studied.lint,
    }
    looks = rng.choices([("Viewer",), ("Viewer", "Linter"), ("Minutes of the search", "Viewer")], (4, 4, 2))[
        0
    ]
    return [f"{who}: {said[who]}" for who in looks]


@lru_cache(maxsize=512)
def _own_names(source: str) -> tuple[str, ...]:
    """Those that may be changed."""
    found: dict[str, None] = {}
    for line in read(source):
        scope = line.scope
        names = [
            *scope.signals,
            *scope.parameters,
            *(name for family in scope.states.values() for name in family),
        ]
        found.update(dict.fromkeys(name for name in names if name not in scope.clocks and not is_reset(name)))
    return tuple(found)


def _renamed(source: str, names: Sequence[str], rng: random.Random) -> dict[str, str]:
    """Other names for about half of those in a source: what stood for a constant, in capitals, still does."""
    taken = set(_WORD.findall(source))
    new: dict[str, str] = {}
    for old in _own_names(source):
        if rng.random() < 0.5:
            free = [name for name in names if name not in taken and name.isupper() == old.isupper()]
            new[old] = rng.choice(free)
            taken.add(new[old])
    return new


def _which_text(studied: Studied, line: int) -> str:
    return prompts.which_text(line, code(studied.bug.source, line))


def _undone(studied: Studied, edit: Edit, after: Simulation) -> str:
    return prompts.patched(edit, code(studied.bug.source, edit.line), after, kept=False)


def _question(chat: Chat, talk: Talk, options: Iterable[str], right: str) -> Question:
    return Question(
        chat.template(talk), tuple(option + chat.end for option in options), frozenset([right + chat.end])
    )


def _said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
