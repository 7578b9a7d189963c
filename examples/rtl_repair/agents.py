"""The five agents that repair a design.

`decision` leads: it keeps one dialogue for all of a session and chooses what comes next. `viewer` looks at waveforms,
`searcher` reads, `summary` condenses what is too long for the others, and `patcher` changes a line at a time. The
testbench decides what a patch was worth. None of them knows of a search; where there is one, it branches at the state
`patch` of `decision`, and every branch has a `patcher` of its own.

Patches are held to the `replacements` of real lines: first the number of a line is chosen, then its text. What was
tried and undone is not offered again. So even a very small model writes patches that compile, and so does chance:
see `random_arm`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from examples.rtl_repair import prompts
from examples.rtl_repair.bugs import Bug
from examples.rtl_repair.designs import INSTANCE, Design
from examples.rtl_repair.edits import Edit, apply, code, editable_lines, replacements
from examples.rtl_repair.lint import lint
from examples.rtl_repair.simulator import Simulation, simulate
from examples.rtl_repair.text_search import reference, search
from examples.rtl_repair.waveform import signals, view
from hive import Dialogue, Shared, agent, fail, gather, gen, score, spawn, tool

VIEW: Final = "view"
SEARCH: Final = "search"
LINT: Final = "lint"
PATCH: Final = "patch"
STOP: Final = "stop"
WHO: Final = {VIEW: "Viewer", SEARCH: "Minutes of the search", LINT: "Linter"}
"""The actions that look at something, and whose report comes of each."""
STOP_AFTER: Final = 3
"""Patches of one bug before Decision may give it up."""
NOT_OFFERED: Final = "the answer is none of those that were offered: does the server know grammars?"

_PATCHES_PER_DIALOGUE: Final = 6
"""After so many the Patcher begins a new dialogue, so that none outgrows a small model's context."""
_COLUMNS: Final = 6
_WAVEFORM_ROWS: Final = 12
_WAVEFORM_TIME: Final = 60
"""How long before the failing check a waveform begins: six clocks of the testbenches."""
_PASSAGES: Final = 24


@dataclass(frozen=True)
class Rules:
    """What a session may do."""

    patches: int
    """Patches tried one after the other, at the most."""
    lookups: int = 2
    """Looks at things before each patch, at the most; with 0 Decision has nothing to choose and is not asked."""
    keep_going: bool = False
    """Whether to continue with the next bug, after a repair or when one is given up, until the patches are used up."""
    turns: int = 12
    """Turns of Decision's dialogue, after which Summary condenses it."""


@dataclass
class Outcome:
    """The outcome of a session."""

    repairs: dict[int, list[Edit]] = field(default_factory=dict)
    """The edits, in order, of each bug that was repaired, by its place among the bugs."""
    bugs: int = 0
    """Bugs that were begun with."""
    patches: int = 0


@dataclass(frozen=True)
class Assignment:
    """What the Patcher has to know for one patch."""

    source: str
    result: Simulation
    untried: dict[int, list[str]]
    """What lines may be replaced by."""
    notes: list[str]
    """What was found out since the last patch."""
    undone: str | None
    """How the last patch ended, if it was undone."""


@dataclass
class Case:
    """A bug under repair."""

    source: str
    result: Simulation
    """How the source does in its testbench."""
    made: list[Edit] = field(default_factory=list)
    """Patches that were kept."""
    tried: list[Edit] = field(default_factory=list)
    """Patches of this source that were undone."""
    undone: str | None = None
    """How the last patch ended, if it was undone."""
    patches: int = 0

    def untried(self) -> dict[int, list[str]]:
        """The texts that lines of the source may be replaced by, less what was tried; none of them empty."""
        left = {
            number: [text for text in texts if Edit(number, text) not in self.tried]
            for number, texts in _edits_of(self.source).items()
        }
        return {number: texts for number, texts in left.items() if texts}

    def settle(self, edit: Edit, source: str, result: Simulation) -> str:
        """Keep a patch that made things better, or undo it; returns how it ended, in a sentence.

        A patch that changes nothing is undone, too: kept, it would stand in the way of the one that repairs.
        """
        kept = result.failing_share < self.result.failing_share
        became = prompts.patched(edit, code(self.source, edit.line), result, kept=kept)
        self.patches += 1
        if kept:
            self.source, self.result = source, result
            self.made.append(edit)
            self.tried, self.undone = [], None
        else:
            self.tried.append(edit)
            self.undone = became
        return became


@lru_cache(maxsize=1024)
def _edits_of(source: str) -> dict[int, tuple[str, ...]]:
    return {number: replacements(source, number) for number in editable_lines(source)}


@agent(name="Decision")
async def decision(design: Shared[Design], bugs: Shared[Sequence[Bug]], rules: Rules) -> Outcome:
    """Repair the first of some bugs of a design, or fail; with `keep_going`, as many as there are patches for."""
    talk = Dialogue(system=prompts.DECISION)
    outcome = Outcome()
    # How the last bug ended: Decision learns of it together with the next one, for turns of user and model alternate.
    ended: str | None = None
    for place, bug in enumerate(bugs):
        outcome.bugs += 1
        case = Case(bug.source, await tool(simulate, bug.source, design.testbench))
        news = prompts.new_bug(design, case.result, after=ended)
        hand = spawn(patcher)
        await hand.next()
        while not case.result.passed:
            if outcome.patches == rules.patches or not case.untried():
                if not rules.keep_going:
                    fail(f"{prompts.outcome(case.result)} No patch is left.")
                ended = prompts.GIVEN_UP
                break
            reports: dict[str, str] = {}
            while True:
                if len(talk.messages) > 2 * rules.turns:
                    minutes = await summary(prompts.transcript(talk.messages, news))
                    talk = Dialogue(system=prompts.DECISION)
                    news = prompts.resumed(design, minutes, case.result)
                talk.user(news)
                actions = offered(rules, case, reports)
                if len(actions) == 1:
                    action = actions[0]
                    talk.assistant(action)
                else:
                    action = await gen(talk, name="decide", choices=actions, max_tokens=4, temperature=1.0)
                if action not in actions:
                    fail(NOT_OFFERED)
                if action not in WHO:
                    break
                reports[action] = await look(action, design, case)
                news = prompts.observed(WHO[action], reports[action])
            if action == STOP:
                ended = prompts.GIVEN_UP
                break
            notes = [f"{WHO[looked]}: {report.strip()}" for looked, report in reports.items()]
            assignment = Assignment(case.source, case.result, case.untried(), notes, case.undone)
            await gather(hand.resume(assignment), name="patch")
            edit = await hand.next()
            assert edit is not None
            patched = apply(case.source, edit)
            outcome.patches += 1
            ended = case.settle(edit, patched, await tool(simulate, patched, design.testbench))
            news = prompts.after_patch(ended)
            score(-case.result.failing_share)
        if case.result.passed:
            outcome.repairs[place] = case.made
        if not rules.keep_going or outcome.patches == rules.patches:
            break
    return outcome


def offered(rules: Rules, case: Case, reports: dict[str, str]) -> list[str]:
    """The actions among which Decision may choose. Where looks are allowed, the Viewer looks before any patch.

    A small model would stop looking as soon as its dialogue holds some patches.
    """
    left = rules.lookups - len(reports)
    if left and VIEW not in reports:
        return [VIEW, SEARCH] if left > 1 and SEARCH not in reports else [VIEW]
    looks = [action for action in WHO if action not in reports] if left else []
    may_stop = rules.keep_going and case.patches >= STOP_AFTER
    return [*looks, PATCH, *([STOP] if may_stop else [])]


async def look(action: str, design: Design, case: Case) -> str:
    """The report of a member of the team, or of the linter."""
    if action == VIEW:
        return await viewer(design, case.source, case.result)
    if action == LINT:
        return prompts.lint_report(await tool(lint, case.source, design.top))
    return await summary(await searcher(design, case.source, case.result))


@agent(name="Viewer")
async def viewer(design: Shared[Design], source: str, result: Simulation) -> str:
    """What goes wrong, by the source and the waveform before the first failing check."""
    dumped = await tool(simulate, source, design.testbench, vcd=True)
    failure = prompts.first_failure(result)
    talk = Dialogue(system=prompts.ENGINEER).user(prompts.which_signal(source, result))
    if dumped.vcd is None or failure is None or not (names := inner_signals(dumped.vcd)):
        table = prompts.NO_WAVEFORM
        talk.assistant("none")
    else:
        name = await gen(talk, name="signal", choices=list(names), max_tokens=24, temperature=1.0)
        if name not in names:
            fail(NOT_OFFERED)
        table = await tool(waveform, dumped.vcd, names, [failure.signal, str(name)], failure.time)
    talk.user(prompts.what_is_wrong(table))
    return str(await gen(talk, name="report", max_tokens=60, stop="\n", temperature=0.7))


def inner_signals(vcd: str) -> dict[str, str]:
    """The signals of the design itself, such as `dut.count`, by the last part of their names: ports and what is within.

    Neither the testbench's own variables, nor what modules below the design or functions call theirs.
    """
    inside = [name for name in signals(vcd) if name.rpartition(".")[0] == INSTANCE]
    return {name.rpartition(".")[2]: name.partition(".")[2] for name in inside}


def waveform(vcd: str, names: dict[str, str], wanted: Sequence[str], time: int) -> str:
    """The last changes up to a time, of the signals that are wanted and some others of the design."""
    shown = [name for name in dict.fromkeys([*wanted, *names]) if name in names][:_COLUMNS]
    table = view(
        vcd, [names[name] for name in shown], max(0, time - _WAVEFORM_TIME), time, _WAVEFORM_TIME + 1
    )
    head, *rows = table.splitlines()
    return "\n".join([head, *rows[-_WAVEFORM_ROWS:]])


@agent(name="Searcher")
async def searcher(design: Shared[Design], source: str, result: Simulation) -> str:
    """What specification, testbench and reference say about the first failing check."""
    talk = Dialogue(system=prompts.SEARCHER).user(prompts.what_to_look_up(design, result))
    query = await gen(talk, name="query", max_tokens=16, stop="\n", temperature=0.7)
    failure = prompts.first_failure(result)
    texts = {
        **reference(),
        "specification": design.description,
        "testbench": design.testbench,
        "source": source,
    }
    # A query without any word of the texts would find nothing.
    wanted = str(query) if failure is None else f"{query} {failure.signal}"
    passages = await tool(search, wanted, texts, _PASSAGES)
    talk.user(prompts.what_they_say(passages))
    return str(await gen(talk, name="answer", max_tokens=80, temperature=0.7))


@agent(name="Summary")
async def summary(text: str) -> str:
    """The minutes of a long text."""
    talk = Dialogue(system=prompts.SUMMARY).user(prompts.to_condense(text))
    return str(await gen(talk, name="minutes", max_tokens=64, temperature=0.7))


@agent(name="Patcher")
async def patcher() -> AsyncGenerator[Edit | None, Assignment]:
    """Yields a patch for every assignment that it is handed; first of all None, to be handed one."""
    assignment: Assignment = yield None
    talk = Dialogue()
    source: str | None = None
    patches = 0
    while True:
        if assignment.source != source or assignment.undone is None or patches == _PATCHES_PER_DIALOGUE:
            source, patches = assignment.source, 0
            talk = Dialogue(system=prompts.ENGINEER)
            talk.user(prompts.which_line(source, assignment.result, assignment.undone, assignment.notes))
        else:
            talk.user(prompts.which_other_line(assignment.undone, assignment.notes))
        numbers = [str(number) for number in assignment.untried]
        number = await gen(talk, name="line", choices=numbers, max_tokens=6, temperature=1.0)
        if number not in numbers:
            fail(NOT_OFFERED)
        texts = assignment.untried[int(number)]
        talk.user(prompts.which_text(int(number), code(assignment.source, int(number))))
        text = await gen(talk, name="text", choices=texts, max_tokens=120, temperature=1.0)
        if text not in texts:
            fail(NOT_OFFERED)
        patches += 1
        assignment = yield Edit(int(number), str(text))
