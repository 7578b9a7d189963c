"""The prompts of the agents.

System prompts are the same in every session, so that all sessions share their beginning in the server's caches.
Viewer and Patcher have one in common and then read the same listing of the source: what one of them has read, the
other finds there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from examples.rtl_repair.designs import Design
from examples.rtl_repair.edits import Edit
from examples.rtl_repair.lint import LintWarning
from examples.rtl_repair.simulator import Simulation
from examples.rtl_repair.text_search import Passage

if TYPE_CHECKING:
    # Training needs the prompts, on machines without the frontend.
    from hive import Message

DECISION: Final = """\
You lead a small team that repairs Verilog designs. One line of a design is wrong. A testbench compares the design \
with its specification, and only the testbench decides whether the design is repaired. You never see the whole source \
and you write no code: you choose what the team does next.

The actions you can choose:
- view: the Viewer reads the source, looks at the waveform around the first failing check, and reports what it saw. \
Choose it before every patch.
- search: the Searcher reads the Verilog reference, the specification and the testbench, and explains what the code \
should look like. Choose it only when the rule that the design breaks is unclear.
- lint: the linter lists suspicious places, such as widths that do not fit, latches, and signals that nobody uses. \
Choose it after a report that names no line.
- patch: the Patcher replaces one line by a similar one, and the testbench is run again. A patch is kept if fewer \
checks fail than before, and is undone otherwise.
- stop: give this bug up and turn to another one. Choose it when patches no longer help.

Rules:
- Look before you patch: a patch without a report is a guess.
- After a patch that was undone, look at something that you have not looked at yet.
- A report can be wrong. The testbench is never wrong.
- Many checks usually fail because of one line, so the first failure tells more than the later ones.

Answer with the name of one action and nothing else."""

ENGINEER: Final = """\
You are a hardware engineer in a team that repairs Verilog designs. One line of the design is wrong, all other lines \
are right. You get the source, each line with its number, and what the testbench says about it.

How to read the testbench: every failing check names the time, the signal, the value that the specification asks for \
and the value that the design gave, in hexadecimal. The first failing check is the most important one. A signal that \
is right at first and wrong later was driven by a wrong next state. A signal that is x was never given a value.

Typical mistakes, and what they look like:
- A condition is negated, or compares with < where <= is right: something happens one clock too early or too late.
- A + stands where a - belongs, or an operand is another one: values drift away from the right ones.
- A constant is off by one, or one bit of it is wrong: only some values are wrong.
- The wrong edge, the wrong reset level, or a reset to the wrong value: wrong from the first check on.
- The wrong signal of two with similar names: right as long as both are equal.
- Branches of an if or a ?: are swapped: wrong exactly when the condition matters.
- Part of a vector is taken at the wrong place: right for small values only.

You work in one of two roles, and are told in which. As the Viewer you look at waveforms and report, in one or two \
sentences, what goes wrong and which lines can cause it; you change nothing. As the Patcher you choose the one line \
that is wrong and then what it has to read; you change one line at a time, and never one that is right."""

SEARCHER: Final = """\
You are the librarian of a team that repairs Verilog designs. You are told which check of a design's testbench fails, \
and you find out what the specification and the Verilog language say about it. You have a search over four kinds of \
text: the design's specification, its testbench, its source, and a reference of the Verilog language. The search \
looks for words, not for meanings: a good query has two to six words that stand in the text that you want, such as \
names of signals and terms of the language. Do not write whole sentences into a query.

You work in two steps. First you write the query. Then you get the passages that the search found, each with the name \
of its text and its line, the best one first, and you answer what they say about the failing check: what the value \
should be and when, and which rule of the language is likely to be broken. Some passages have nothing to do with the \
failure; leave them out. Quote code exactly as it stands in a passage. When the passages do not say anything about \
the failing check, say so; do not make anything up. Answer in at most three sentences."""

SUMMARY: Final = """\
You write the minutes of a team that repairs Verilog designs. You get a text that is too long for the others to read \
again and again: an answer of the librarian, or everything that the leader of the team was told so far. You write \
down what the leader needs to choose the next step, in at most three short sentences.

What to keep: which signal fails first, when, and with which values; which lines were suspected, and why; which \
patches were tried, and whether they were kept or undone; rules of the language or the specification that bear on the \
failure; how many checks fail now. Write numbers of lines and names of signals exactly as they stand.

What to leave out: greetings, instructions, explanations of the procedure, repetitions, guesses that were refuted, \
and everything about bugs that are repaired already. Do not give advice, do not add anything that is not in the text, \
and do not quote long pieces of code. If the text says nothing of use, write: nothing of use."""

LIBRARY_CHARS: Final = 7_000
"""The most of passages that the Searcher gets: about 2,500 tokens."""
GIVEN_UP: Final = "That bug was given up."
NO_WAVEFORM: Final = "There is no waveform."
_CHOOSE: Final = "What next?"
_FAIL: Final = re.compile(r"^FAIL (\d+) (\S+) expected (\S+) got (\S+)$", re.MULTILINE)


class Failure(NamedTuple):
    """A check that failed, as the testbench prints it."""

    time: int
    signal: str
    expected: str
    got: str

    def __str__(self) -> str:
        return f"at time {self.time} {self.signal} is {self.got}, not {self.expected}"


def first_failure(simulation: Simulation) -> Failure | None:
    """The first check that failed; None when the simulation did not get that far."""
    match = _FAIL.search(simulation.log)
    return None if match is None else Failure(int(match[1]), match[2], match[3], match[4])


def outcome(simulation: Simulation) -> str:
    """How a simulation went, in a sentence."""
    if simulation.passed:
        return f"All {simulation.checks} checks pass."
    if not simulation.compiled:
        return "The design does not compile."
    if not simulation.checks:
        return "The simulation does not come to its end."
    failed = f"{simulation.failures} of {simulation.checks} checks fail"
    failure = first_failure(simulation)
    return f"{failed}." if failure is None else f"{failed}, the first one {failure}."


# Decision


def new_bug(design: Design, simulation: Simulation, *, after: str | None) -> str:
    """A bug, for Decision; `after` is how the one before it ended, in the same dialogue and design."""
    says = f"The testbench says: {outcome(simulation)}\n\n{_CHOOSE}"
    if after is None:
        return f"{_specified(design)}\n\n{says}"
    return f"{after} Now design {design.name} has another bug, in another line. {says}"


def observed(who: str, report: str) -> str:
    """What a member of the team, or a tool, found, for Decision."""
    return f"{who}: {report.strip() or 'nothing'}\n\n{_CHOOSE}"


def patched(edit: Edit, before: str, after: Simulation, *, kept: bool) -> str:
    """How a patch ended, of a line that read `before`."""
    return (
        f"Line {edit.line} was `{before}` and now reads `{edit.text}`. {outcome(after)} "
        f"The patch is {'kept' if kept else 'undone'}."
    )


def after_patch(patch: str) -> str:
    """The same for Decision, which has to continue."""
    return f"{patch}\n\n{_CHOOSE}"


def lint_report(warnings: Sequence[LintWarning]) -> str:
    """The linter's first findings."""
    return "\n".join(str(warning) for warning in warnings[:6]) or "no warnings"


def transcript(messages: Sequence[Message], news: str) -> str:
    """What was said in a dialogue of Decision's, and its next message, for Summary."""
    said = [
        f"{'Leader' if message.role == 'assistant' else 'Team'}: {message.content.removesuffix(_CHOOSE).strip()}"
        for message in messages
        if message.role != "system"
    ]
    return "\n".join([*said, f"Team: {news.removesuffix(_CHOOSE).strip()}"])


def resumed(design: Design, minutes: str, simulation: Simulation) -> str:
    """How Decision resumes when its dialogue was condensed."""
    return (
        f"{_specified(design)}\n\nSo far: {minutes.strip()}\n\n"
        f"The testbench says: {outcome(simulation)}\n\n{_CHOOSE}"
    )


def _specified(design: Design) -> str:
    return f"Design {design.name}. Specification: {design.description}"


# Viewer and Patcher


def listing(source: str) -> str:
    """The source with numbers of lines. The prompts of Viewer and Patcher begin with it."""
    lines = enumerate(source.splitlines(), start=1)
    return "The source:\n" + "\n".join(f"{number}: {line}" for number, line in lines)


def which_signal(source: str, simulation: Simulation) -> str:
    """The Viewer's first question."""
    return (
        f"{listing(source)}\n\nThe testbench says: {outcome(simulation)}\n\nYou are the Viewer. "
        "Name the signal that you want to see in the waveform beside the failing one."
    )


def what_is_wrong(waveform: str) -> str:
    """The Viewer's second question."""
    return (
        f"The waveform up to the failing check:\n{waveform}\n\n"
        "What goes wrong, and which lines can cause it? One or two sentences."
    )


def which_line(source: str, simulation: Simulation, undone: str | None, notes: Sequence[str]) -> str:
    """The Patcher's first question about a source."""
    known = "".join(f"{note}\n" for note in [*notes, *([undone] if undone else [])])
    return (
        f"{listing(source)}\n\nThe testbench says: {outcome(simulation)}\n\nYou are the Patcher. "
        f"{known}Which line is wrong? Answer with its number."
    )


def which_other_line(patch: str, notes: Sequence[str]) -> str:
    """The Patcher's first question after a patch that was undone."""
    known = "".join(f"{note}\n" for note in notes)
    return f"{patch}\n{known}Which line is wrong? Answer with its number; it may be the same one again."


def which_text(number: int, text: str) -> str:
    """The Patcher's second question."""
    return f"Line {number} reads `{text}`. What does it have to read? Answer with the line."


# Searcher and Summary


def what_to_look_up(design: Design, simulation: Simulation) -> str:
    """The Searcher's first question."""
    return f"{_specified(design)}\n\nThe testbench says: {outcome(simulation)}\n\nWrite the query."


def what_they_say(passages: Sequence[Passage]) -> str:
    """The Searcher's second question. Passages beyond `LIBRARY_CHARS` are left out."""
    text = ""
    for passage in passages:
        block = f"{passage.source}, line {passage.line}:\n{passage.text}\n\n"
        if len(text) + len(block) > LIBRARY_CHARS:
            break
        text += block
    return f"{text or 'Nothing was found.'}\n\nWhat does that say about the failing check?"


def to_condense(text: str) -> str:
    """What Summary is asked."""
    return f"{text.strip()}\n\nWrite the minutes of this."
