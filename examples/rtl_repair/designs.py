"""The designs: each a folder with `design.v`, a self-checking `testbench.v` and its specification `spec.md`.

A testbench prints `FAIL <time> <signal> expected <hex> got <hex>` for the first mismatches and ends with
`PASS <m> checks` or `FAILED <n> of <m> checks`. What all testbenches share is in `checks.vh`, which they include;
`Design.testbench` has it in place, so that it stands alone. Its module is `testbench`, in which the design is `dut`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "designs"

INSTANCE: Final = "testbench.dut"
"""The design in the waveforms of every testbench."""

_INCLUDE: Final = '`include "checks.vh"'


@dataclass(frozen=True)
class Design:
    """A correct design and how to tell that it is."""

    name: str
    description: str
    """What it must do, in a few sentences."""
    source: str
    testbench: str
    top: str
    """The module that the testbench tests."""


@lru_cache(maxsize=1)
def all_designs() -> tuple[Design, ...]:
    """All designs, sorted by name."""
    return tuple(_read(file.parent) for file in sorted(FOLDER.glob("*/design.v")))


def design(name: str) -> Design:
    """The design of that name. Raises `KeyError`, naming those there are."""
    for found in all_designs():
        if found.name == name:
            return found
    raise KeyError(f"no design is named {name!r}; there are {', '.join(d.name for d in all_designs())}")


def _read(folder: Path) -> Design:
    source = (folder / "design.v").read_text()
    # The top comes last: a design that has modules below it defines them first.
    top = re.findall(r"^module\s+(\w+)", source, re.MULTILINE)[-1]
    return Design(
        name=folder.name,
        description=" ".join((folder / "spec.md").read_text().split()),
        source=source,
        testbench=(folder / "testbench.v").read_text().replace(_INCLUDE, (FOLDER / "checks.vh").read_text()),
        top=top,
    )
