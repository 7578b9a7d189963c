"""Bugs, made by changing one line of a correct design; each is verified to compile and to fail the testbench.

    python -m examples.rtl_repair.bugs --count 66 --seed 0 --write

chooses bugs, verifies them and writes `bugs.json`, which `committed` reads.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from examples.rtl_repair.designs import Design, all_designs
from examples.rtl_repair.designs import design as design_named
from examples.rtl_repair.mutations import BREAKING
from examples.rtl_repair.simulator import Simulation, simulate
from examples.rtl_repair.verilog import read, with_code

_TIMEOUT_S: Final = 5.0
"""Most loops of logic never end; what ends does so in a fraction of a second."""

FILE: Final = Path(__file__).parent / "bugs.json"

COUNT: Final = 66
"""Two bugs of each design."""

KINDS: Final = tuple(dict.fromkeys(kind for kind, _ in BREAKING))
"""What a bug may be."""


@dataclass(frozen=True)
class Bug:
    """A design with one line broken."""

    design: str
    """The design's name."""
    kind: str
    """One of `KINDS`."""
    line: int
    """Counted from 1."""
    original: str
    """The line's code as it should be, without indentation and comment: the text of the edit that repairs it."""
    mutated: str
    """The line's code as it is in `source`."""
    source: str
    """The whole broken source."""


def candidates(design: Design) -> list[Bug]:
    """All bugs that can be written into a design, by line; some of them its testbench may not notice.

    What two kinds would both make is a bug of the first of them only.
    """
    bugs: dict[str, Bug] = {}
    for line in read(design.source):
        for kind, rule in BREAKING:
            for text in rule(line):
                if text == line.code:
                    continue
                source = with_code(design.source, line.number, text)
                bugs.setdefault(source, Bug(design.name, kind, line.number, line.code, text, source))
    return list(bugs.values())


def is_verified(simulation: Simulation) -> bool:
    """Whether a simulation shows a bug: it compiled, came to its end, and some checks failed."""
    return simulation.compiled and simulation.failures > 0


async def suite(
    count: int, seed: int, designs: Sequence[Design] | None = None, *, without: Collection[str] = ()
) -> list[Bug]:
    """`count` bugs that compile and fail their testbenches, spread over designs and kinds.

    Each is drawn from the design that has given the fewest so far, and there of the kind of which there are the
    fewest; those whose sources are `without` are passed over. The same seed chooses the same bugs. Raises
    `ToolsMissing` without Icarus Verilog, and `ValueError` when the designs do not have so many.
    """
    rng = random.Random(seed)
    pools: dict[Design, dict[str, list[Bug]]] = {}
    for source in all_designs() if designs is None else designs:
        pools[source] = {}
        for bug in candidates(source):
            pools[source].setdefault(bug.kind, []).append(bug)
        for pool in pools[source].values():
            rng.shuffle(pool)
    chosen: list[Bug] = []
    by_design, by_kind = Counter[str](), Counter[str]()
    order = list(pools)
    rng.shuffle(order)
    while len(chosen) < count:
        left = [source for source in order if any(pools[source].values())]
        if not left:
            raise ValueError(f"{count} bugs were asked for, and the designs have {len(chosen)}")
        source = min(left, key=lambda source: by_design[source.name])
        kind = min((kind for kind, pool in pools[source].items() if pool), key=lambda kind: by_kind[kind])
        while pools[source][kind]:
            bug = pools[source][kind].pop()
            if bug.source in without:
                continue
            if is_verified(await simulate(bug.source, source.testbench, timeout_s=_TIMEOUT_S)):
                chosen.append(bug)
                by_design[bug.design] += 1
                by_kind[bug.kind] += 1
                break
    return chosen


def committed() -> list[Bug]:
    """The bugs of `bugs.json`, which were verified when it was written. Raises `ValueError` for one that no longer
    fits its design."""
    return [_restore(**entry) for entry in json.loads(FILE.read_text())]


def _restore(design: str, kind: str, line: int, original: str, mutated: str) -> Bug:
    source = design_named(design).source
    bug = Bug(design, kind, line, original, mutated, with_code(source, line, mutated))
    if read(source)[line - 1].code != original:
        raise ValueError(f"line {line} of {design} is no longer {original!r}: write {FILE.name} anew")
    return bug


def _write(bugs: Iterable[Bug]) -> None:
    # The sources follow from the designs.
    entries = [{key: value for key, value in asdict(bug).items() if key != "source"} for bug in bugs]
    FILE.write_text(json.dumps(entries, indent=1) + "\n")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.rtl_repair.bugs", description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT, help=f"how many bugs (default: {COUNT})")
    parser.add_argument("--seed", type=int, default=0, help="same seed, same bugs (default: 0)")
    parser.add_argument("--write", action="store_true", help=f"write them to {FILE.name}")
    options = parser.parse_args(argv)
    if options.count < 1:
        parser.error("--count must be at least 1")
    bugs = asyncio.run(suite(options.count, options.seed))
    for bug in bugs:
        print(f"{bug.design:18} {bug.kind:20} {bug.line:3}  {bug.original}  ->  {bug.mutated}")
    if options.write:
        _write(bugs)


if __name__ == "__main__":
    main()
