"""What Verilator's linter says of a design."""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from examples.rtl_repair.tools import require_tools, run

ERROR: Final = "ERROR"

_WAIVED: Final = (
    # The file is always named design.v.
    "DECLFILENAME",
    # A text need not end with a newline.
    "EOFNEWLINE",
    # Names that would be words of C++ matter only to Verilator's simulator.
    "SYMRSVDWORD",
)
_TIMEOUT_S: Final = 20.0
_MESSAGE: Final = re.compile(
    r"^%(?:Warning-(?P<code>\w+)|Error(?:-(?P<error>\w+))?): design\.v:(?P<line>\d+):\d+: (?P<text>.*)$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class LintWarning:
    """One thing the linter does not like."""

    line: int
    """Counted from 1."""
    code: str
    """Verilator's name of the rule, such as `WIDTH`; `ERROR` for what does not compile."""
    text: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.code}: {self.text}"


async def lint(source: str, top: str) -> tuple[LintWarning, ...]:
    """The linter's warnings and errors, by line. Raises `ToolsMissing` without Verilator."""
    require_tools("verilator")
    waivers = [f"-Wno-{code}" for code in _WAIVED]
    with tempfile.TemporaryDirectory(prefix="rtl_repair_") as folder:
        (Path(folder) / "design.v").write_text(source)
        done = await run(
            [
                *("verilator", "--lint-only", "-Wall", *waivers, "--language", "1364-2005"),
                *("--top-module", top, "design.v"),
            ],
            cwd=Path(folder),
            timeout_s=_TIMEOUT_S,
        )
    found = {
        LintWarning(
            int(match["line"]),
            match["code"] or ERROR,
            match["text"],
        )
        for match in _MESSAGE.finditer(done.output)
    }
    if done.code and not found:
        # An error without a place in the source, such as a top that is not there.
        text = next(iter(done.output.splitlines()), f"verilator ended with code {done.code}")
        found = {LintWarning(1, ERROR, text)}
    return tuple(sorted(found, key=lambda warning: (warning.line, warning.code, warning.text)))
