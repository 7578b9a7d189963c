"""Bugs, made by changing one line of a correct design; each is verified to compile and to fail the testbench."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.rtl_repair.designs import Design


@dataclass(frozen=True)
class Bug:
    """A design with one line broken."""

    design: str
    """The design's name."""
    kind: str
    line: int
    """Counted from 1."""
    original: str
    """The line's code as it should be, without indentation and comment: the text of the edit that repairs it."""
    mutated: str
    """The line's code as it is in `source`."""
    source: str
    """The whole broken source."""


def candidates(design: Design) -> list[Bug]:
    """All bugs that can be written into a design, by line; some of them may not be noticed by its testbench."""
    raise NotImplementedError


async def suite(count: int, seed: int, designs: Sequence[Design] | None = None) -> list[Bug]:
    """`count` bugs that compile and fail their testbenches, spread over designs and kinds.

    The same seed chooses the same bugs. Raises `ToolsMissing` without Icarus Verilog.
    """
    raise NotImplementedError
