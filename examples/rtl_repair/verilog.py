"""As much of Verilog as it takes to change a line sensibly: its tokens, and what the names in it stand for.

This reads plain code with one statement or declaration to a line, as in `designs`: no `/* */`, no macros. What it does
not understand, it leaves alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Final, Literal

Kind = Literal["word", "number", "operator"]

_TOKEN: Final = re.compile(
    r"(?P<number>\d*\s*'[sS]?[bodhBODH]\s*[0-9a-fA-FxzXZ?_]+|\d[\d_]*)"
    r"|(?P<word>[$`]?[A-Za-z_]\w*)"
    r"|(?P<operator><<<|>>>|===|!==|<<|>>|<=|>=|==|!=|&&|\|\||\*\*|~\^|~&|~\||\+:|-:|.)"
)
_COMMENT: Final = re.compile(r"\s*//.*$")
_OPEN: Final = {"(": ")", "[": "]", "{": "}"}
_DECLARES: Final = frozenset(["input", "output", "inout", "wire", "reg", "integer"])
_CONSTANTS: Final = frozenset(["parameter", "localparam"])
_DECLARATION: Final = re.compile(
    r"(?:(?:input|output|inout|wire|reg|integer)\s+)+(?P<signed>signed\s*)?(?P<range>\[[^\]]*\])?\s*"
    r"(?P<names>[A-Za-z_]\w*(?:\s*,\s*(?!(?:input|output)\b)[A-Za-z_]\w*)*)(?P<array>\s*\[)?"
)
_CONSTANT: Final = re.compile(r"(?:parameter|localparam)\s+(?:\[[^\]]*\]\s*)?(\w+)\s*=\s*([^,;]+)")
_SIZED: Final = re.compile(r"(\d+)'[bdh][0-9a-f]+")
_RESET: Final = re.compile(r"(?:\w+_)?a?(?:rst|reset)(?:_?n)?")
_EDGE: Final = re.compile(r"\b(?:pos|neg)edge\s+(\w+)")
_CONSTANT_VALUE: Final = re.compile(r"\d*'[bdh][0-9a-f]+|\d+|\{[^,]*\{\d+'[bdh][0-9a-f]+\}\}|[A-Z]\w*")


@dataclass(frozen=True)
class Token:
    """A word, number or operator, and where it stands in the code of its line."""

    kind: Kind
    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Signal:
    """A wire, register or port."""

    name: str
    range: str
    """Its range without blanks, such as `[WIDTH-1:0]`; empty for one bit, `integer` for an integer."""
    signed: bool

    @property
    def is_bit(self) -> bool:
        return not self.range


@dataclass
class Scope:
    """What names stand for in a module, or in a function of it."""

    signals: dict[str, Signal] = field(default_factory=dict)
    """Without memories, in order of declaration."""
    parameters: list[str] = field(default_factory=list)
    states: dict[str, list[str]] = field(default_factory=dict)
    """Named constants that have a width, such as the states of a machine, by that width."""
    clocks: set[str] = field(default_factory=set)
    assigned: dict[str, dict[str, None]] = field(default_factory=dict)
    """Constants that are assigned somewhere, by the range of what they are assigned to."""

    @property
    def resets(self) -> list[str]:
        return [name for name in self.signals if is_reset(name)]

    @property
    def bits(self) -> list[str]:
        """The signals of one bit but for clocks."""
        return [s.name for s in self.signals.values() if s.is_bit and s.name not in self.clocks]

    def alike(self, name: str) -> list[str]:
        """The signals that could stand for `name`: as wide, as signed, neither clock nor reset, and not itself."""
        signal = self.signals.get(name)
        if signal is None or signal.range == "integer" or name in self.clocks or is_reset(name):
            return []
        family = [
            other.name
            for other in self.signals.values()
            if (other.range, other.signed) == (signal.range, signal.signed)
            and other.name not in self.clocks
            and not is_reset(other.name)
        ]
        return _neighbours(family, name)

    def other_states(self, name: str) -> list[str]:
        """The named constants that could stand for another one."""
        family = next((family for family in self.states.values() if name in family), [])
        return _neighbours(family, name)


@dataclass(frozen=True)
class Line:
    """A line of a source: its indentation, its code, and the comment after it."""

    number: int
    """Counted from 1."""
    indentation: str
    code: str
    comment: str
    scope: Scope
    in_reset: bool
    """Whether it stands in a block that is run during reset."""

    @cached_property
    def tokens(self) -> tuple[Token, ...]:
        return tuple(tokenize(self.code))

    @cached_property
    def pairs(self) -> dict[int, int]:
        """Opening to closing brackets of any form, and back, by place in `tokens`; without those left open."""
        pairs: dict[int, int] = {}
        opened: list[int] = []
        for place, token in enumerate(self.tokens):
            if token.text in _OPEN:
                opened.append(place)
            elif opened and token.text == _OPEN[self.tokens[opened[-1]].text]:
                start = opened.pop()
                pairs[start], pairs[place] = place, start
        return pairs

    @cached_property
    def first(self) -> str:
        return self.tokens[0].text if self.tokens else ""

    @property
    def declares(self) -> bool:
        """Whether it declares signals or constants."""
        return self.first in _DECLARES or self.first in _CONSTANTS

    @cached_property
    def assignment(self) -> int | None:
        """The place of the `=` or `<=` that assigns."""
        if self.first in ("always", "for", "module", "function"):
            return None
        place = 0
        while place < len(self.tokens):
            text = self.tokens[place].text
            if text in ("=", "<="):
                return place
            # What closes brackets, or opens some that stay open, belongs to a statement on another line.
            if text in _OPEN and place not in self.pairs:
                return None
            # An operator before it makes it a comparison.
            if text in ("&&", "||", "?", "+", "-", "&", "|", "^", "==", "!="):
                return None
            place = self.pairs.get(place, place) + 1 if text in _OPEN else place + 1
        return None

    @cached_property
    def is_procedural(self) -> bool:
        """Whether it assigns, or may assign, in an `always` block."""
        return self.assignment is not None and self.first != "assign" and not self.declares

    @cached_property
    def target(self) -> str:
        """The name that is assigned to, if it is one name or a part of it; else empty."""
        if self.assignment is None:
            return ""
        place = self.assignment - 1
        while self.tokens[place].text == "]" and place in self.pairs:
            place = self.pairs[place] - 1
        token = self.tokens[place]
        return token.text if place >= 0 and token.kind == "word" else ""

    @cached_property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """The pairs of brackets that hold a range, such as `[7:0]` or `[i +: 8]`."""
        found = []
        for start, end in self.pairs.items():
            if self.tokens[start].text == "[" and any(
                self.tokens[place].text in (":", "+:", "-:") for place in range(start, end)
            ):
                found.append((start, end))
        return tuple(found)

    @cached_property
    def condition(self) -> tuple[int, int] | None:
        """The brackets around the condition of an `if`."""
        for place, token in enumerate(self.tokens[:-1]):
            if token.text == "if" and place + 1 in self.pairs:
                return place + 1, self.pairs[place + 1]
        return None

    @cached_property
    def expression(self) -> frozenset[int]:
        """The places of tokens that are read, outside ranges: right of an assignment, in brackets, or in a label."""
        if self.first in ("always", "module", "function", "task", "endmodule", "integer", "genvar"):
            return frozenset()
        places: set[int] = set()
        if self.assignment is not None:
            places.update(range(self.assignment + 1, len(self.tokens)))
        elif not self.declares:
            places.update(range(len(self.tokens)))
        for start, end in self.pairs.items():
            if self.tokens[start].text in "([":
                places.update(range(start, end + 1))
        for start, end in self.ranges:
            places.difference_update(range(start, end + 1))
        if self.first == "for":
            # A step that is changed makes the loop endless.
            semicolons = [place for place, token in enumerate(self.tokens) if token.text == ";"]
            places.difference_update(range(semicolons[-1] if semicolons else 0, len(self.tokens)))
        # The names of ports and parameters of an instance are not signals.
        places.difference_update(
            place for place in range(1, len(self.tokens)) if self.tokens[place - 1].text == "."
        )
        return frozenset(places)

    def with_tokens(self, start: int, end: int, text: str) -> str:
        """The code with the tokens from `start` to before `end` replaced."""
        return self.code[: self.tokens[start].start] + text + self.code[self.tokens[end - 1].end :]

    def text(self, start: int, end: int) -> str:
        """The code of the tokens from `start` to before `end`."""
        return self.code[self.tokens[start].start : self.tokens[end - 1].end] if start < end else ""


def is_reset(name: str) -> bool:
    return _RESET.fullmatch(name) is not None


def tokenize(code: str) -> Iterator[Token]:
    for match in _TOKEN.finditer(code):
        if not match.group().isspace():
            kind: Kind = "number" if match["number"] else "word" if match["word"] else "operator"
            yield Token(kind, match.group(), match.start(), match.end())


@lru_cache(maxsize=256)
def read(source: str) -> tuple[Line, ...]:
    """The lines of a source."""
    parts = [_parts(line) for line in source.split("\n")]
    scopes = _scopes([code for _, code, _ in parts])
    resets = _reset_blocks([code for _, code, _ in parts])
    return tuple(
        Line(number + 1, indentation, code, comment, scopes[number], resets[number])
        for number, (indentation, code, comment) in enumerate(parts)
    )


def with_code(source: str, line: int, code: str) -> str:
    """The source with other code in one line; its indentation and comment stay."""
    place = read(source)[line - 1]
    lines = source.split("\n")
    lines[line - 1] = place.indentation + code + place.comment
    return "\n".join(lines)


def _parts(line: str) -> tuple[str, str, str]:
    comment = _COMMENT.search(line)
    end = comment.start() if comment else len(line.rstrip())
    start = min(len(line) - len(line.lstrip()), end)
    return line[:start], line[start:end], line[end:]


def _scopes(codes: list[str]) -> list[Scope]:
    """The scope of each line."""
    scopes: list[Scope] = []
    module = scope = Scope()
    for code in codes:
        if code.startswith("module"):
            module = scope = Scope()
        if code.startswith("function"):
            # A function sees the module, but its declarations are its own.
            scope = Scope(
                dict(module.signals), module.parameters, module.states, module.clocks, module.assigned
            )
        scopes.append(scope)
        if code.startswith("endfunction"):
            scope = module
        _declare(code, scope)
    return scopes


def _declare(code: str, scope: Scope) -> None:
    scope.clocks.update(name for name in _EDGE.findall(code) if not is_reset(name))
    for name, value in _CONSTANT.findall(code):
        if sized := _SIZED.fullmatch(value.strip()):
            scope.states.setdefault(sized[1], []).append(name)
        else:
            scope.parameters.append(name)
    for match in _DECLARATION.finditer(code):
        if match["array"]:
            continue
        extent = "integer" if code.startswith("integer") else (match["range"] or "").replace(" ", "")
        for name in match["names"].split(","):
            scope.signals[name.strip()] = Signal(name.strip(), extent, bool(match["signed"]))
    if assigned := re.search(r"(\w+) <= ([^;]+);", code):
        name, value = assigned.groups()
        if name in scope.signals and _CONSTANT_VALUE.fullmatch(value):
            scope.assigned.setdefault(scope.signals[name].range, {})[value] = None


def _reset_blocks(codes: list[str]) -> list[bool]:
    """For each line, whether it stands in a block whose condition is a reset."""
    inside, found = False, []
    for code in codes:
        words = re.findall(r"\w+", code)
        if code.startswith("if (") and any(map(is_reset, words)):
            found.append(False)
            inside = True
            continue
        inside = inside and "end" not in words and "else" not in words
        found.append(inside)
    return found


def _neighbours(family: list[str], name: str) -> list[str]:
    """The others of a family: of a large one only the two before and the two after, in a circle.

    So whatever may replace a name may be replaced by it.
    """
    if name not in family:
        return []
    place, size = family.index(name), len(family)
    if size <= 5:
        return [other for other in family if other != name]
    return [family[(place + step) % size] for step in (1, -1, 2, -2)]
