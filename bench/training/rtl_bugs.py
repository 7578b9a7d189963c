"""What the Patcher's lessons are made of: every verified bug of the designs, with what the tools say about it.

    python -m bench.training.rtl_bugs --out bench/training/rtl_bugs.json.xz

simulates them all, which takes Icarus Verilog, Verilator and 20 minutes on two cores; `recorded` reads the file, so
that a machine that trains needs neither of the tools. For every bug there are some edits that do not repair it, and
how the testbench took them: a Patcher reads of such in its dialogue. They are drawn at random, from a seed that each
bug has of its own, so any part of the file can be made again alone.

Beside the bugs there is what the embedded model said as Viewer and as Summary in the sessions that are recorded for
the eviction bench: the reports that a Patcher gets from its team.
"""

from __future__ import annotations

import asyncio
import json
import lzma
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from examples.rtl_repair import prompts
from examples.rtl_repair.bugs import Bug, candidates, is_verified
from examples.rtl_repair.designs import Design, all_designs, design
from examples.rtl_repair.edits import Edit, apply, editable_lines, replacements
from examples.rtl_repair.lint import lint
from examples.rtl_repair.simulator import Simulation, simulate

FILE: Final = Path(__file__).parent / "rtl_bugs.json.xz"
RECORDINGS: Final = ("repair-2x6.json.xz", "repair-4x21.json.xz")
WRONG: Final = 3
"""Edits of each bug that do not repair it; fewer if so many were not found in twice as many trials."""

_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True)
class Studied:
    """A bug, and what the tools say about it. Simulations have as much of their log as prompts quote."""

    bug: Bug
    result: Simulation
    lint: str
    """The linter's report."""
    wrong: tuple[tuple[Edit, Simulation], ...]
    """Edits that would be undone, as no fewer checks fail with them, and how the testbench took each."""

    @property
    def repair(self) -> Edit:
        return Edit(self.bug.line, self.bug.original)


async def study(bug: Bug) -> Studied | None:
    """Simulate a bug and some edits of it; None if the testbench does not notice it, or no edit undoes it.

    Raises `ToolsMissing` without Icarus Verilog and Verilator.
    """
    source = design(bug.design)
    result = await simulate(bug.source, source.testbench, timeout_s=_TIMEOUT_S)
    if not is_verified(result) or bug.original not in replacements(bug.source, bug.line):
        return None
    rng = random.Random(f"{bug.design} {bug.line} {bug.mutated}")
    wrong: dict[Edit, Simulation] = {}
    for trial in range(2 * WRONG):
        # The right line with the wrong text is the likelier mistake of one who has learned something.
        line = bug.line if trial % 2 else rng.choice(editable_lines(bug.source))
        edit = Edit(line, rng.choice(replacements(bug.source, line)))
        after = await simulate(apply(bug.source, edit), source.testbench, timeout_s=_TIMEOUT_S)
        if not after.passed and after.failing_share >= result.failing_share:
            wrong.setdefault(edit, _quoted(after))
        if len(wrong) == WRONG:
            break
    report = prompts.lint_report(await lint(bug.source, source.top))
    return Studied(bug, _quoted(result), report, tuple(wrong.items()))


async def study_all(designs: Iterable[Design]) -> list[Studied]:
    """All bugs of some designs that can be studied, in the order of `candidates`."""
    found = await asyncio.gather(*(study(bug) for source in designs for bug in candidates(source)))
    return [each for each in found if each is not None]


@lru_cache(maxsize=1)
def recorded() -> tuple[Studied, ...]:
    """The bugs of the file. Raises `ValueError` for one that the designs no longer have."""
    known = {(bug.design, bug.line, bug.mutated): bug for each in all_designs() for bug in candidates(each)}
    studied = []
    for entry in _content()["bugs"]:
        key = (entry["design"], entry["line"], entry["text"])
        if key not in known:
            raise ValueError(
                f"line {key[1]} of {key[0]} no longer becomes {key[2]!r}: write {FILE.name} anew"
            )
        wrong = tuple((Edit(each["line"], each["text"]), _simulation(each)) for each in entry["wrong"])
        studied.append(Studied(known[key], _simulation(entry), entry["lint"], wrong))
    return tuple(studied)


def reports() -> dict[str, list[str]]:
    """What the Viewer and the Summary of the file said, by who said it."""
    said: dict[str, list[str]] = _content()["reports"]
    return said


def heard() -> dict[str, list[str]]:
    """What `reports` has, from the recorded sessions. It takes the embedded model's tokenizer."""
    from transformers import AutoTokenizer

    from bench.traces.recording import FOLDER, load_trace
    from hive.server.embedded_model import ensure_embedded_model

    tokenizer = AutoTokenizer.from_pretrained(ensure_embedded_model())
    said: dict[str, dict[str, None]] = {"Viewer": {}, "Summary": {}}
    for name in RECORDINGS:
        for request in load_trace(FOLDER / name).requests:
            if request.agent in said:
                text = tokenizer.decode(request.output.tolist(), skip_special_tokens=True).strip()
                # The Viewer also answers with the name of a signal, which no agent is told.
                if " " in text:
                    said[request.agent][text] = None
    return {who: list(texts) for who, texts in said.items()}


def write(studied: Iterable[Studied], said: dict[str, list[str]], file: Path) -> None:
    """Write what `recorded` and `reports` read."""
    entries = [
        {
            "design": each.bug.design,
            **_entry(Edit(each.bug.line, each.bug.mutated), each.result),
            "lint": each.lint,
            "wrong": [_entry(edit, result) for edit, result in each.wrong],
        }
        for each in studied
    ]
    # Sources and repairs follow from the designs.
    text = json.dumps({"reports": said, "bugs": entries}, separators=(",", ":"))
    file.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


@lru_cache(maxsize=1)
def _content() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(lzma.decompress(FILE.read_bytes()))
    return content


def _quoted(result: Simulation) -> Simulation:
    failure = prompts.first_failure(result)
    log = "" if failure is None else "FAIL {} {} expected {} got {}\n".format(*failure)
    return Simulation(result.compiled, result.passed, result.checks, result.failures, log, None)


def _entry(edit: Edit, result: Simulation) -> dict[str, Any]:
    return {
        "line": edit.line,
        "text": edit.text,
        "compiled": result.compiled,
        "checks": result.checks,
        "failures": result.failures,
        "log": result.log,
    }


def _simulation(entry: dict[str, Any]) -> Simulation:
    return Simulation(entry["compiled"], False, entry["checks"], entry["failures"], entry["log"], None)


def main(argv: Sequence[str] | None = None) -> None:
    from bench.harness.command import Command

    parser = Command("bench.training.rtl_bugs", __doc__, json=False)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    options = parser.parse_args(argv)
    studied: list[Studied] = []
    for source in all_designs():
        found = asyncio.run(study_all([source]))
        print(f"{source.name:22} {len(found):4} bugs", flush=True)
        studied += found
    write(studied, heard(), options.out)


if __name__ == "__main__":
    main()
