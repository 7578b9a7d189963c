"""The command line of a workload, the report that it writes, and what it prints at the end."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

from bench.harness.machine import machine, public_command, versions

T = TypeVar("T")


class HowMade(BaseModel):
    """What every report says of itself."""

    command: str
    """That makes it again."""
    versions: dict[str, str]
    machine: dict[str, str | int]
    seconds: float
    """Of the whole run, servers' starts included."""


def positive(text: str) -> int:
    """The value of an option that takes a number of things, at least one."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return number


def above_0(text: str) -> float:
    """The value of an option that takes an amount of time."""
    number = float(text)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"must be above 0, not {text}")
    return number


def temperature(text: str) -> float:
    """The value of an option that takes a temperature at which something is drawn."""
    number = float(text)
    if not 0 < number < 100:
        raise argparse.ArgumentTypeError("must be above 0 and below 100")
    return number


@dataclass
class Run:
    """One run of a command: its options, and what its report says of how it was made."""

    options: argparse.Namespace
    command: str
    """Without names of hosts and folders."""
    console: Console
    began: float
    """By ``time.monotonic()``."""

    def deadline(self, reserve_s: float, quick_minutes: float | None = None) -> float | None:
        """When to begin nothing more (``time.monotonic()``); None without ``--minutes`` and what ``--quick`` implies.

        ``reserve_s`` is kept back: what is under way may take longer than planned, and ending takes seconds.
        """
        minutes: float | None = self.options.minutes
        if minutes is None and quick_minutes is not None and self.options.quick:
            minutes = quick_minutes
        return None if minutes is None else self.began + 60 * minutes - reserve_s

    def how_made(self) -> dict[str, Any]:
        """The fields of `HowMade`, for a run that ends now."""
        return how_made(self.command, self.began)

    def finish(
        self,
        report: HowMade,
        shown: Iterable[Table | str],
        plot: Callable[[Path, str], Iterable[Path]] | None = None,
        written: bool = False,
    ) -> None:
        """Write the report unless it is ``written``, print its tables and lines, and draw its plots.

        ``plot`` gets the folder, and what file names begin with; it may import matplotlib, which need not be there.
        """
        path: Path = self.options.json
        if not written:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(report.model_dump_json(indent=1) + "\n")
        for each in shown:
            if isinstance(each, Table):
                self.console.print(each)
            else:
                self.console.print(each, highlight=False, markup=False)
        if plot is not None and importlib.util.find_spec("matplotlib") is None:
            self.console.print("no plots: matplotlib is not installed (it comes with hive\\[bench])")
        elif plot is not None:
            for drawn in plot(getattr(self.options, "plots", None) or path.parent, path.stem):
                self.console.print(f"plot: {drawn}", highlight=False)
        self.console.print(f"report: {path} ({report.seconds:.0f} s)", highlight=False)


class Command(argparse.ArgumentParser):
    """``python -m MODULE`` with ``--json FILE``, ``--plots DIR`` and ``--quick``, where there are such."""

    def __init__(
        self,
        module: str,
        doc: str | None,
        *,
        json: bool = True,
        quick: str | None = None,
        plots: bool = False,
        width: int = 180,
    ) -> None:
        super().__init__(
            prog=f"python -m {module}",
            description=doc,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.module, self.began, self.width = module, time.monotonic(), width
        if json:
            self.add_argument(
                "--json", type=Path, required=True, metavar="FILE", help="write the report here"
            )
        if plots:
            self.option("--plots", Path, "DIR", "for the plots (default: beside FILE)")
        if quick is not None:
            self.add_argument("--quick", action="store_true", help=quick)

    def option(
        self, flag: str, kind: Callable[[str], Any], metavar: str | None = None, about: str = "", **more: Any
    ) -> None:
        """An option with a value; a default that is a number is shown unless ``about`` tells it."""
        if isinstance(more.get("default"), int | float) and "default" not in about:
            about += " (default: %(default)s)"
        self.add_argument(flag, type=kind, metavar=metavar, help=about, **more)

    def several(
        self, flag: str, choices: Iterable[str], about: str = "", default: Sequence[str] | None = None
    ) -> None:
        """An option that takes one or more of some words."""
        self.add_argument(flag, choices=list(choices), nargs="+", default=default, help=about)

    def server_flags(self, whose: str = "all servers") -> None:
        """Whatever stands behind ``--``."""
        self.add_argument("flags", nargs="*", metavar="FLAG", help=f"more flags of {whose}, after --")

    def run(self, argv: Sequence[str] | None, *files: str) -> Run:
        """Parse the command line; ends with a sentence if ``--json`` or one of ``files`` cannot be written."""
        arguments = list(sys.argv[1:] if argv is None else argv)
        options = self.parse_args(arguments)
        for name in ("json", *files):
            self.check_writable(name, getattr(options, name))
        # Tables that go to a file get the room that they need.
        console = Console(width=None if sys.stdout.isatty() else self.width)
        return Run(options, public_command(arguments, self.module), console, self.began)

    def check_writable(self, name: str, path: Path | None) -> None:
        """Look before a run: after an hour of it, it would be too late to learn that the report has no place."""
        if path is not None and (problem := not_writable(path)):
            self.error(f"--{name}: {path} cannot be written: {problem}")


class Pace:
    """Whether there is time for another round, when the longest one so far is the measure."""

    def __init__(self, deadline: float | None, *, at_least_one: bool = False) -> None:
        """``deadline`` is by ``time.monotonic()``."""
        self._deadline, self._longest, self._at_least_one = deadline, 0.0, at_least_one
        self._began: float | None = None

    def goes_on(self) -> bool:
        """To be asked before each round."""
        now, first = time.monotonic(), self._began is None
        if self._began is not None:
            self._longest = max(self._longest, now - self._began)
        self._began = now
        in_time = self._deadline is None or now + self._longest <= self._deadline
        return in_time or (first and self._at_least_one)

    def take(self, tasks: Iterable[T], at_once: int) -> Iterator[T]:
        """The tasks for which there is time, a round of some at once after the other."""
        for number, task in enumerate(tasks):
            if number % at_once == 0 and not self.goes_on():
                return
            yield task


def how_made(command: str, began: float) -> dict[str, Any]:
    """The fields of `HowMade`, for a run that began then (``time.monotonic()``) and ends now."""
    seconds = round(time.monotonic() - began, 1)
    return {"command": command, "versions": versions(), "machine": machine(), "seconds": seconds}


def not_writable(path: Path) -> str | None:
    """Make a file's folder if there is none; what is in the way, if the file cannot be written even so."""
    new = not path.exists()
    try:
        with contextlib.suppress(FileExistsError):
            path.parent.mkdir(parents=True)
        with path.open("ab"):
            pass
    except OSError as error:
        return error.strerror or str(error)
    if new:
        path.unlink()
    return None
