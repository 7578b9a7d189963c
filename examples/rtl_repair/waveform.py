"""Waveforms as text: a reader of value change dumps (VCD), and a table of the signals one asks for."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

_UNKNOWN: Final = "x"


@dataclass
class _Signal:
    """The changes of one signal, in order of time; the last of each time counts."""

    width: int
    times: list[int] = field(default_factory=list)
    values: list[str] = field(default_factory=list)

    def change(self, time: int, value: str) -> None:
        if self.times and self.times[-1] == time:
            self.values[-1] = value
        elif not self.values or self.values[-1] != value:
            self.times.append(time)
            self.values.append(value)

    def at(self, time: int) -> str:
        place = bisect_right(self.times, time)
        return self.values[place - 1] if place else _UNKNOWN


def signals(vcd: str) -> tuple[str, ...]:
    """The full names of all signals, such as `testbench.dut.count`, in the order of the dump."""
    return tuple(_parse(vcd))


def view(vcd: str, signals: Sequence[str], start: int, end: int, max_rows: int = 40) -> str:
    """A table of signals: a row for `start`, and one for each time up to `end` at which one of them changes.

    A signal is named in full or by any end of its name that fits no other (`dut.count`, `count`). Vectors are in
    hexadecimal; a digit is x or z when one of its bits is. At most `max_rows` rows are shown, and a last line says how
    many were not. Raises `ValueError` for a name that is unknown or fits several signals.
    """
    known = _parse(vcd)
    chosen = [known[_resolve(name, known)] for name in signals]
    times = {time for signal in chosen for time in signal.times if start < time <= end}
    rows = [start, *sorted(times)]
    table = [["time", *signals]]
    table += [[str(time), *(_show(s.at(time), s.width) for s in chosen)] for time in rows[:max_rows]]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in table]
    if len(rows) > max_rows:
        lines.append(f"... {len(rows) - max_rows} more changes up to {end}")
    return "\n".join(lines)


def _resolve(name: str, known: dict[str, _Signal]) -> str:
    if name in known:
        return name
    fits = [full for full in known if full.endswith(f".{name}")]
    # Ports appear in the testbench and below it; where they are one wire, it does not matter which is shown.
    if fits and all(known[full] is known[fits[0]] for full in fits):
        return fits[0]
    if fits:
        raise ValueError(f"{name!r} may be any of {', '.join(fits)}")
    raise ValueError(f"no signal is named {name!r}; there are {', '.join(known)}")


def _show(bits: str, width: int) -> str:
    """Bits as a dump has them (leading ones may be left out) as hexadecimal digits; a single bit as it is."""
    if width == 1 or not re.fullmatch(r"[01xz]+", bits):
        return bits
    # Left out are zeros, but for a value that begins with x or z.
    bits = bits.rjust(width, bits[0] if bits[0] in "xz" else "0")
    bits = bits.rjust(-(-width // 4) * 4, bits[0] if bits[0] in "xz" else "0")
    return "".join(_digit(bits[at : at + 4]) for at in range(0, len(bits), 4))


def _digit(bits: str) -> str:
    if "x" in bits:
        return "x"
    if "z" in bits:
        return "z"
    return f"{int(bits, 2):x}"


@lru_cache(maxsize=8)
def _parse(vcd: str) -> dict[str, _Signal]:
    """Signals by full name; wires that are one and the same share one `_Signal`."""
    by_name: dict[str, _Signal] = {}
    by_code: dict[str, _Signal] = {}
    scope: list[str] = []
    time = 0
    tokens = iter(vcd.split())
    for token in tokens:
        if token == "$scope":
            _, name = next(tokens), next(tokens)
            scope.append(name)
        elif token == "$upscope":
            scope.pop()
        elif token == "$var":
            _, width, code, name = next(tokens), next(tokens), next(tokens), next(tokens)
            signal = by_code.setdefault(code, _Signal(int(width)))
            by_name[".".join([*scope, name])] = signal
        elif token in ("$date", "$version", "$timescale", "$comment"):
            while next(tokens, "$end") != "$end":
                pass
        elif token[0] == "#":
            time = int(token[1:])
        elif token[0] in "01xzXZ":
            if token[1:] in by_code:
                by_code[token[1:]].change(time, token[0].lower())
        elif token[0] in "bBrR":
            code = next(tokens, "")
            if code in by_code:
                by_code[code].change(time, token[1:].lower())
    return by_name
