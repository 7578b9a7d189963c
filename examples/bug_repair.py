"""Bug repair by two agents: one gathers code, the other patches it, and a search tries several patches.

    python -m examples.bug_repair --url http://localhost:30000

This is the pair of agents with which the Hive paper explains its frontend. `bug_repair` spawns `context_gather`.
In a loop it takes the code that was gathered, has the model write a patch, runs the project's tests on it, and
hands the patch back, so that the other agent gathers on from there. Neither knows that there is a search: the
supervisor in the decorator fires the state `patch` several times, and with every branch of `bug_repair` goes a
`context_gather` of its own, which only learns of the patches of that branch.

Patches are held to small edits of lines that were really gathered, so that even a very small model writes patches
that apply. Few such edits exist, and chance finds the right ones, too: `--random` runs the same search with random
answers, the baseline that a model has to be compared with.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from examples.random_model import random_model
from hive import (
    MCTS,
    ChildEnded,
    Client,
    HttpClient,
    LiveView,
    ModelError,
    RunResult,
    Supervisor,
    TreeOfThoughts,
    agent,
    arun,
    fail,
    gen,
    score,
    spawn,
    tool,
    write_tree,
)

Files = dict[str, str]
"""A project: the text of each file by its name."""

PROJECT: Final[Files] = {
    "report.py": """\
from stats import median, spread


def summary(values):
    return f"median {median(values)}, spread {spread(values)}"
""",
    "stats.py": """\
from ordering import ascending


def median(values):
    ordered = ascending(values)
    middle = len(ordered) // 2
    if len(ordered) % 2 == 1:
        return (ordered[middle - 1] + ordered[middle]) / 2
    return ordered[middle]


def spread(values):
    ordered = ascending(values)
    return ordered[-1] - ordered[0]
""",
    "ordering.py": """\
def ascending(values):
    ordered = []
    for value in values:
        place = 1
        while place < len(ordered) and ordered[place] < value:
            place += 1
        ordered.insert(place, value)
    return ordered
""",
}
"""Two bugs: `median` takes odd for even, and `ascending` never looks at the first place."""

CHECKS: Final = (
    ("ascending", "ascending([1, 2, 3])", "[1, 2, 3]"),
    ("ascending", "ascending([2, 1])", "[1, 2]"),
    ("ascending", "ascending([3, 1, 2])", "[1, 2, 3]"),
    ("median", "median([7, 8, 9])", "8"),
    ("median", "median([1, 2, 3, 4])", "2.5"),
    ("median", "median([9, 1, 5])", "5"),
    ("spread", "spread([4, 1, 9])", "8"),
    ("summary", "summary([1, 3])", "'median 2.0, spread 2'"),
)
"""What the project's tests call, and what that has to give. The first word is what is at fault if it does not."""

_RUN_CHECKS: Final = """\
import sys
sys.path.insert(0, sys.argv[1])
from ordering import *
from report import *
from stats import *
for name, call, expected in {checks!r}:
    try:
        got = repr(eval(call))
    except Exception as error:
        got = type(error).__name__
    if got == expected:
        print("passed")
    else:
        print(f"{{call}} gives {{got}}, not {{expected}}: see {{name}}")
"""

TEST_S: Final = 2.0
"""Seconds that the tests may take: a patch may well make a loop endless."""

_SWAPS: Final = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "+": "-", "-": "+", "0": "1", "1": "0",
    "and": "or", "or": "and",
}  # fmt: skip
_TOKEN: Final = re.compile(r"[<>=!]=|[<>+-]|\b[01]\b|\band\b|\bor\b")
_LINE: Final = re.compile(r"([\w.]+):(\d+): ( *)(.*)")


@dataclass(frozen=True)
class Report:
    """How the tests went."""

    passed: int
    output: str
    """A line for each test that failed."""

    @property
    def is_clean(self) -> bool:
        """Whether all passed."""
        return self.passed == len(CHECKS)


@agent(supervisor=TreeOfThoughts(branch_at="patch", branching=6, breadth=3))
async def bug_repair(files: Files) -> list[str]:
    """Repair a project; returns the patches, in order, after which all its tests pass."""
    report = await tool(verify, files)
    context = spawn(context_gather, files, report.output)
    patches: list[str] = []
    while True:
        try:
            code = await context.next()
        except ChildEnded:
            fail(f"no more code to look at, and {report.passed} of {len(CHECKS)} tests pass")
        edits = edits_of(code)
        if not edits:
            await context.resume(None)
            continue
        patch = await gen(
            f"{code}\n\nTests say:\n{report.output}\nOne line is wrong. Corrected it reads:\n",
            name="patch",
            raw=True,
            choices=edits,
            max_tokens=48,
            temperature=1.0,
        )
        if patch not in edits:
            fail("the patch is none of the edits: does the server know grammars?")
        files = patched(files, patch)
        patches.append(str(patch))
        report = await tool(verify, files)
        score(report.passed)
        if report.is_clean:
            return patches
        await context.resume(patch)


@agent
async def context_gather(files: Files, clue: str) -> AsyncGenerator[str, str | None]:
    """Yields code of the project that has to do with `clue`, more each time; takes a patch of it, or None."""
    seen: list[str] = []
    while names := [name for name in defined_in(files) if name not in seen]:
        likely = [name for name in names if re.search(rf"\b{name}\b", clue)] or names
        name = await gen(
            f"{clue}\nThe function to look at is",
            name="look_up",
            raw=True,
            choices=[f" {name}" for name in likely],
            max_tokens=8,
            temperature=1.0,
        )
        seen.append(name.strip())
        code = "\n\n".join([await tool(search, files, found) for found in seen])
        patch = yield code
        if patch is not None:
            files = patched(files, patch)
        clue = code
    return


def defined_in(files: Files) -> list[str]:
    """The names of all functions of the project."""
    return [name for text in files.values() for name in re.findall(r"^def (\w+)", text, re.MULTILINE)]


def search(files: Files, name: str) -> str:
    """The definition of a function, found by its text: each line with file and number before it."""
    for file, text in files.items():
        lines = text.splitlines()
        for start, line in enumerate(lines):
            if re.match(rf"def {name}\b", line):
                end = next(
                    (at for at in range(start + 1, len(lines)) if re.match(r"\S", lines[at])), len(lines)
                )
                body = range(start, end)
                return "\n".join(f"{file}:{number + 1}: {lines[number]}" for number in body if lines[number])
    return f"{name} is not defined here"


def edits_of(code: str) -> list[str]:
    """All lines of gathered code with one operator, 0 or 1 replaced, as `file:number: line` without indentation."""
    edits: dict[str, None] = {}
    for file, number, _, line in _LINE.findall(code):
        for token in _TOKEN.finditer(line):
            new = line[: token.start()] + _SWAPS[token.group()] + line[token.end() :]
            edits[f"{file}:{number}: {new}"] = None
    return list(edits)


def patched(files: Files, patch: str) -> Files:
    """The project with the one line replaced that the patch names; it keeps its indentation."""
    match = _LINE.fullmatch(patch)
    assert match is not None
    file, number, _, line = match.groups()
    lines = files[file].splitlines()
    old = lines[int(number) - 1]
    lines[int(number) - 1] = old[: len(old) - len(old.lstrip())] + line
    return {**files, file: "\n".join(lines) + "\n"}


def verify(files: Files) -> Report:
    """Run the project's tests on it, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            (Path(folder) / name).write_text(text)
        program = _RUN_CHECKS.format(checks=CHECKS)
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-B", "-c", program, folder],
                capture_output=True,
                text=True,
                timeout=TEST_S,
            )
        except subprocess.TimeoutExpired:
            return Report(0, "the tests do not come to an end\n")
    lines = done.stdout.splitlines()
    if done.returncode or len(lines) != len(CHECKS):
        return Report(0, f"the project does not run: {done.stderr.strip().splitlines()[-1:]}\n")
    failed = [line for line in lines if line != "passed"]
    return Report(len(CHECKS) - len(failed), "".join(f"{line}\n" for line in failed))


class Algorithm(Enum):
    """What may be said to `--search`."""

    TOT = "tot"
    MCTS = "mcts"


def supervisor_of(search: Algorithm, branching: int, breadth: int) -> Supervisor:
    """Tree of Thoughts, or MCTS with as many patches as that makes in three rounds."""
    if search is Algorithm.TOT:
        return TreeOfThoughts(branch_at="patch", branching=branching, breadth=breadth)
    # A patch is worth what the tests say of it; the target is what only a repaired project reaches.
    return MCTS(
        branch_at="patch",
        simulations=branching * (1 + 2 * breadth),
        branching=branching,
        rollout="value",
        workers=4,
        target=len(CHECKS),
    )


async def repair(
    model: Client, *, supervisor: Supervisor | None = None, seed: int = 0, console: Console | None = None
) -> RunResult[list[str]]:
    """Repair the project, watched."""
    with LiveView("bug repair", console=console) as view:
        return await arun(
            bug_repair, PROJECT, model=model, seed=seed, supervisor=supervisor, on_event=view.on_event
        )


def main(
    url: Annotated[str | None, typer.Option(help="The server, such as http://localhost:30000.")] = None,
    random: Annotated[bool, typer.Option("--random", help="Give random answers, without a server.")] = False,
    search: Annotated[Algorithm, typer.Option(help="The algorithm.")] = Algorithm.TOT,
    branching: Annotated[int, typer.Option(min=1, help="Patches per state.")] = 6,
    breadth: Annotated[int, typer.Option(min=1, help="States kept per round.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same search.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for the search tree.")] = Path("out/bug_repair"),
    api_key: Annotated[str | None, typer.Option(envvar="HIVE_API_KEY", help="The server's API key.")] = None,
) -> None:
    """Repair a small Python project with two bugs."""
    if (url is None) != random:
        raise typer.BadParameter("give one of the two", param_hint="--url and --random")
    try:
        model: Client = random_model() if url is None else HttpClient(url, api_key=api_key)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--url") from None
    console = Console()
    supervisor = supervisor_of(search, branching, breadth)
    try:
        result = asyncio.run(repair(model, supervisor=supervisor, seed=seed, console=console))
    except ModelError as error:
        hint = "" if error.status else "; start one with `python -m hive.launch_server --port PORT`"
        console.print(
            f"bug_repair: {error}{hint}", style="red", highlight=False, markup=False, soft_wrap=True
        )
        raise typer.Exit(1) from None
    out.mkdir(parents=True, exist_ok=True)
    write_tree(result.tree, out / "tree.html", title="Bug repair")
    text = "\n".join(f"  {patch}" for patch in result.value) if result.value else "  not found"
    console.print(f"Repair:\n{text}", highlight=False, markup=False)
    for name, usage in sorted(result.totals.agents.items()):
        console.print(
            f"{name}: {usage.requests} requests, {usage.tokens_generated} tokens generated, "
            f"{usage.tokens_replayed} replayed",
            highlight=False,
            markup=False,
        )
    console.print(f"Search tree: {out / 'tree.html'}", highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    typer.run(main)
