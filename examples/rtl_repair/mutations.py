"""Small changes of one line of Verilog: those that break a design, and those that mend one.

Most rules are their own inverse: what they make of a line, they turn back. A few lose something (which signal enabled
a register, what it was reset to); for each of those a mending rule offers everything that may have stood there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from examples.rtl_repair.verilog import Line, is_reset

Rule = Callable[[Line], Iterator[str]]
"""The other codes that a rule makes of a line's code."""

_OPERATORS: Final = (
    ("<", "<=", ">", ">="),
    ("==", "!="),
    ("&&", "||"),
    ("&", "|", "^"),
    ("+", "-"),
    ("<<", ">>", ">>>"),
)
_BASED: Final = re.compile(r"(\d+)'([bdh])([0-9a-f]+)")
_RADIX: Final = {"b": 2, "d": 10, "h": 16}
_FORMAT: Final = {"b": "b", "d": "d", "h": "x"}


def wrong_operator(line: Line) -> Iterator[str]:
    """Another operator of the same family."""
    for place in sorted(line.expression):
        text = line.tokens[place].text
        # A sign, as in `-1`, has no left operand.
        if text in "+-" and not _ends_operand(line, place - 1):
            continue
        for family in _OPERATORS:
            if text in family:
                for other in family:
                    if other != text:
                        yield line.with_tokens(place, place + 1, other)


def off_by_one(line: Line) -> Iterator[str]:
    """A number one larger or smaller; a parameter less or plus one."""
    for place in sorted(line.expression):
        token = line.tokens[place]
        before = line.tokens[place - 1].text if place else ""
        after = line.tokens[place + 1].text if place + 1 < len(line.tokens) else ""
        # Counts of repetitions are widths, and `x + 0` is no off-by-one.
        if after == "{" or (before in "+-" and token.text in ("0", "1'b1", "1'b0")):
            continue
        if token.kind == "number":
            for number in _one_off(token.text):
                if not (before in ("+", "-") and number == "0"):
                    yield line.with_tokens(place, place + 1, number)
        elif token.text in line.scope.parameters and not {before, after} & {"*", "/", "%", "<<", ">>"}:
            if after in ("+", "-") and line.tokens[place + 2].text == "1":
                yield line.with_tokens(place, place + 3, token.text)
            elif after not in ("+", "-"):
                # Indices are written without blanks.
                blank = "" if before == "[" else " "
                yield line.with_tokens(place, place + 1, f"{token.text}{blank}-{blank}1")
                yield line.with_tokens(place, place + 1, f"{token.text}{blank}+{blank}1")


def swapped_branch(line: Line) -> Iterator[str]:
    """The two values of a `?:` swapped."""
    for place, token in enumerate(line.tokens):
        if token.text != "?" or place not in line.expression:
            continue
        middle = end = None
        depth, at = 0, place + 1
        while at < len(line.tokens):
            text = line.tokens[at].text
            if at in line.pairs and text in "([{":
                at = line.pairs[at]
            elif text == "?":
                depth += 1
            elif text == ":" and depth:
                depth -= 1
            elif text == ":" and middle is None:
                middle = at
            elif text in (";", ",", ")", "]", "}"):
                end = at
                break
            at += 1
        if middle is not None and end is not None:
            yes, no = line.text(place + 1, middle), line.text(middle + 1, end)
            if yes != no:
                yield line.with_tokens(place + 1, end, f"{no} : {yes}")


def swapped_operands(line: Line) -> Iterator[str]:
    """Two neighbours in `{a, b}` swapped, or the operands of a subtraction."""
    for start, end in sorted(line.pairs.items()):
        if line.tokens[start].text == "{" and start in line.expression:
            commas = [start]
            at = start + 1
            while at < end:
                at = line.pairs[at] if line.tokens[at].text in ("(", "[", "{") else at
                if line.tokens[at].text == ",":
                    commas.append(at)
                at += 1
            commas.append(end)
            for first, middle, last in zip(commas, commas[1:], commas[2:], strict=False):
                left, right = line.text(first + 1, middle), line.text(middle + 1, last)
                if left != right:
                    yield line.with_tokens(first + 1, last, f"{right}, {left}")
    for place in sorted(line.expression):
        if line.tokens[place].text == "-" and _is_signal(line, place - 1) and _is_signal(line, place + 1):
            left, right = line.tokens[place - 1].text, line.tokens[place + 1].text
            if left != right:
                yield line.with_tokens(place - 1, place + 2, f"{right} - {left}")


def blocking_assignment(line: Line) -> Iterator[str]:
    """`=` for `<=` and the reverse."""
    if line.is_procedural and line.assignment is not None:
        other = "=" if line.tokens[line.assignment].text == "<=" else "<="
        yield line.with_tokens(line.assignment, line.assignment + 1, other)


def wrong_width(line: Line) -> Iterator[str]:
    """A bound of a range one larger or smaller."""
    for start, end in line.ranges:
        is_declared = line.declares and (line.assignment is None or end < line.assignment)
        middle = next(at for at in range(start, end) if line.tokens[at].text in (":", "+:", "-:"))
        for first, last in ((start + 1, middle), (middle + 1, end)):
            bound = line.text(first, last)
            # No vector is declared to end at 1, and no memory to begin there.
            if is_declared and bound == "0" and line.text(start + 1, end) != "0:0":
                continue
            for other in _other_bounds(bound):
                yield line.with_tokens(first, last, other)


def inverted_condition(line: Line) -> Iterator[str]:
    """A condition or a signal in an expression negated, or no longer negated."""
    if line.condition is not None:
        start, end = line.condition
        if line.tokens[start + 1].text == "!" and line.pairs.get(start + 2) == end - 1:
            yield line.with_tokens(start, end + 1, line.text(start + 2, end))
        elif end - start > 3 or line.tokens[start + 1].text not in line.scope.bits:
            yield line.with_tokens(start, end + 1, f"(!{line.text(start, end + 1)})")
    for place in sorted(line.expression):
        token = line.tokens[place]
        before = line.tokens[place - 1].text if place else ""
        if not _is_signal(line, place):
            continue
        # After a reduction or a sign, as in `|x`, no negation may stand.
        if before in ("&", "|", "^", "-", "+") and not _ends_operand(line, place - 2):
            continue
        if before in ("!", "~"):
            yield line.with_tokens(place - 1, place + 1, token.text)
        else:
            is_bit = line.scope.signals[token.text].is_bit or _is_bit_select(line, place)
            yield line.with_tokens(place, place + 1, f"{'!' if is_bit else '~'}{token.text}")


def wrong_signal(line: Line) -> Iterator[str]:
    """Another signal of the same width for one that is read."""
    for place in sorted(line.expression):
        token = line.tokens[place]
        if token.kind != "word":
            continue
        for other in line.scope.alike(token.text):
            # A wire that is assigned itself would only ever be unknown.
            if line.is_procedural or other != line.target:
                yield line.with_tokens(place, place + 1, other)


def wrong_state(line: Line) -> Iterator[str]:
    """Another named constant, such as another next state."""
    for place in sorted(line.expression):
        for other in line.scope.other_states(line.tokens[place].text):
            yield line.with_tokens(place, place + 1, other)


def wrong_edge(line: Line) -> Iterator[str]:
    """The other edge of a clock or a reset."""
    if line.first == "always":
        for place, token in enumerate(line.tokens):
            if token.text in ("posedge", "negedge"):
                other = "negedge" if token.text == "posedge" else "posedge"
                yield line.with_tokens(place, place + 1, other)


def lost_sign(line: Line) -> Iterator[str]:
    """`signed` or `$signed(...)` left out."""
    for place, token in enumerate(line.tokens):
        if token.text == "$signed" and place + 1 in line.pairs:
            end = line.pairs[place + 1]
            yield line.with_tokens(place, end + 1, line.text(place + 2, end))
        if token.text == "signed":
            yield line.with_tokens(place, place + 2, line.tokens[place + 1].text)


def found_sign(line: Line) -> Iterator[str]:
    """The inverse of `lost_sign`: a vector made signed, where it is declared, compared or shifted."""
    if line.declares and "signed" not in line.code:
        for place, token in enumerate(line.tokens[:-1]):
            is_kind = token.text in ("wire", "reg", "parameter", "localparam")
            if is_kind and line.tokens[place + 1].text == "[":
                yield line.with_tokens(place + 1, place + 2, "signed [")
    if any(token.text in ("<", ">", ">=", ">>>", "$signed") for token in line.tokens) or "<=" in [
        line.tokens[place].text for place in line.expression
    ]:
        for place in sorted(line.expression):
            name = line.tokens[place].text
            signal = line.scope.signals.get(name)
            if signal is None or signal.is_bit or signal.signed or line.tokens[place - 2].text == "$signed":
                continue
            end = line.pairs[place + 1] if _is_selected(line, place) else place
            yield line.with_tokens(place, end + 1, f"$signed({line.text(place, end + 1)})")


def stuck_enable(line: Line) -> Iterator[str]:
    """A signal in a condition held at 0 or 1, unless it is a reset."""
    for start, end in _terms(line):
        if _is_simple(line, start, end) and not is_reset(line.tokens[end - 1].text):
            yield line.with_tokens(start, end, "1'b1")
            yield line.with_tokens(start, end, "1'b0")


def missing_reset(line: Line) -> Iterator[str]:
    """A reset that is never seen, seen only at clock edges, or that leaves a register as it is."""
    for start, end in _terms(line):
        if _is_simple(line, start, end) and is_reset(line.tokens[end - 1].text):
            yield line.with_tokens(start, end, "1'b0")
    if line.first == "always":
        for place, token in enumerate(line.tokens):
            if token.text == "or" and is_reset(line.tokens[place + 2].text):
                yield line.with_tokens(place - 1, place + 3, line.tokens[place - 1].text)
    if line.in_reset and line.is_procedural and line.assignment is not None and line.assignment == 1:
        yield line.with_tokens(2, len(line.tokens) - 1, line.target)


def missing_condition(line: Line) -> Iterator[str]:
    """The last term of a conjunction left out."""
    end = _end_of_conjunction(line)
    if end is not None:
        ands = [place for place in range(end) if line.tokens[place].text == "&&"]
        if ands and _is_simple(line, ands[-1] + 1, end):
            yield line.with_tokens(ands[-1] - 1, end, line.tokens[ands[-1] - 1].text)


def incomplete_sensitivity(line: Line) -> Iterator[str]:
    """A combinational block that only notices one of the signals of the module."""
    if line.first == "always" and "*" in line.code:
        at = next(place for place, token in enumerate(line.tokens) if token.text == "@")
        end = line.pairs.get(at + 1, at + 1)
        clocked = line.scope.clocks.union(line.scope.resets)
        for name in [name for name in line.scope.signals if name not in clocked][:4]:
            yield line.with_tokens(at, end + 1, f"@({name})")


def complete_sensitivity(line: Line) -> Iterator[str]:
    """The inverse of `incomplete_sensitivity`."""
    if line.first == "always" and not re.search(r"\b(?:pos|neg)edge\b|\*", line.code):
        yield re.sub(r"@\s*\([^)]*\)", "@(*)", line.code)


def found_condition(line: Line) -> Iterator[str]:
    """The inverse of `stuck_enable` and of a reset that is never seen: every signal for a constant."""
    for start, end in _terms(line):
        if line.text(start, end) in ("1'b0", "1'b1"):
            for name in line.scope.bits:
                yield line.with_tokens(start, end, name)
                yield line.with_tokens(start, end, f"!{name}")


def found_reset(line: Line) -> Iterator[str]:
    """The inverse of the rest of `missing_reset`: a reset among the edges, a constant for `x <= x`."""
    if line.first == "always" and re.search(r"(?:pos|neg)edge \w+\)", line.code) and " or " not in line.code:
        for name in line.scope.resets:
            edge = "negedge" if name.endswith("n") else "posedge"
            yield line.code.replace(")", f" or {edge} {name})")
    if line.assignment == 1 and line.text(2, len(line.tokens) - 1) == line.target:
        signal = line.scope.signals.get(line.target)
        if signal is not None:
            known = line.scope.assigned.get(signal.range, ())
            for value in dict.fromkeys([*_extremes(signal.range, line.scope.states), *known]):
                yield line.with_tokens(2, 3, value)


def another_condition(line: Line) -> Iterator[str]:
    """The inverse of `missing_condition`: one more term, which is not among those there."""
    end = _end_of_conjunction(line)
    if end is not None:
        there = {token.text for token in line.tokens}
        for name in line.scope.bits:
            if name not in there and name not in line.scope.resets:
                yield line.with_tokens(end - 1, end, f"{line.tokens[end - 1].text} && {name}")
                yield line.with_tokens(end - 1, end, f"{line.tokens[end - 1].text} && !{name}")


BREAKING: Final[tuple[tuple[str, Rule], ...]] = (
    ("wrong_operator", wrong_operator),
    ("off_by_one", off_by_one),
    ("swapped_branch", swapped_branch),
    ("swapped_operands", swapped_operands),
    ("blocking_assignment", blocking_assignment),
    ("wrong_width", wrong_width),
    ("inverted_condition", inverted_condition),
    ("stuck_enable", stuck_enable),
    ("missing_condition", missing_condition),
    ("missing_reset", missing_reset),
    ("wrong_state", wrong_state),
    ("wrong_signal", wrong_signal),
    ("wrong_edge", wrong_edge),
    ("wrong_edge", incomplete_sensitivity),
    ("lost_sign", lost_sign),
)
"""What breaks a line, with the kind of bug that it makes."""

MENDING_FIRST: Final[tuple[Rule, ...]] = (found_condition, found_reset, complete_sensitivity)
"""What mends a line that is hardly ever written on purpose, such as `if (1'b1)` or `x <= x`."""

MENDING: Final[tuple[Rule, ...]] = (
    *(wrong_operator, off_by_one, swapped_branch, swapped_operands, blocking_assignment, wrong_width),
    *(inverted_condition, wrong_edge, found_sign, wrong_state, wrong_signal, another_condition),
)
"""What may mend any line. Each rule of `BREAKING` is here, or one of these or of `MENDING_FIRST` undoes it."""


def _is_signal(line: Line, place: int) -> bool:
    return (
        0 <= place < len(line.tokens)
        and line.tokens[place].text in line.scope.signals
        and line.scope.signals[line.tokens[place].text].range != "integer"
    )


def _is_selected(line: Line, place: int) -> bool:
    """Whether a bit or a part is taken of the signal there."""
    return place + 1 in line.pairs and line.tokens[place + 1].text == "["


def _is_bit_select(line: Line, place: int) -> bool:
    return _is_selected(line, place) and (place + 1, line.pairs[place + 1]) not in line.ranges


def _ends_operand(line: Line, place: int) -> bool:
    token = line.tokens[place] if place >= 0 else None
    return token is not None and (token.kind != "operator" or token.text in (")", "]", "}"))


def _one_off(number: str) -> Iterator[str]:
    """The numbers one above and one below, in the same notation; within their width if they have one."""
    if number.isdigit():
        yield str(int(number) + 1)
        if int(number):
            yield str(int(number) - 1)
    elif based := _BASED.fullmatch(number):
        width, base, digits = based.groups()
        value, size = int(digits, _RADIX[base]), 1 << int(width)
        pad = 0 if base == "d" else len(digits)
        for other in dict.fromkeys([(value + 1) % size, (value - 1) % size]):
            yield f"{width}'{base}{other:0{pad}{_FORMAT[base]}}"


def _other_bounds(bound: str) -> Iterator[str]:
    """A bound of a range one larger and one smaller."""
    if bound.isdigit():
        yield from _one_off(bound)
    elif match := re.fullmatch(r"(.*[^-+ ])( ?)([-+])( ?)(\d+)", bound):
        rest, before, sign, after, number = match.groups()
        for other in _one_off(number):
            yield rest if other == "0" else f"{rest}{before}{sign}{after}{other}"
    elif re.fullmatch(r"\w+", bound):
        yield f"{bound}-1"
        yield f"{bound}+1"


def _terms(line: Line) -> Iterator[tuple[int, int]]:
    """The terms of conditions on a line: operands of `&&`, `||` and `?`, and whole conditions of `if`."""
    if not line.expression:
        return
    bounds = {"&&", "||", "?", ";"}
    start = None
    for place, token in enumerate(line.tokens):
        opens = token.text == "(" or place == line.assignment
        if opens or token.text in bounds or token.text == ")":
            if start is not None and start < place and place - 1 in line.expression:
                left, right = line.tokens[start - 1].text, token.text
                whole = line.condition is not None and (start - 1, place) == line.condition
                if whole or right == "?" or {left, right} & {"&&", "||"}:
                    yield start, place
            start = place + 1


def _is_simple(line: Line, start: int, end: int) -> bool:
    """Whether tokens are a signal of one bit, or such a signal negated."""
    return line.text(start, end).removeprefix("!") in line.scope.bits


def _end_of_conjunction(line: Line) -> int | None:
    """Where a term could be added with `&&`: the end of a condition, or of a truth value that is assigned."""
    if line.condition is not None:
        return line.condition[1]
    if line.assignment is None or line.tokens[-1].text != ";" or line.first in ("parameter", "localparam"):
        return None
    end = len(line.tokens) - 1
    logical = {"&&", "||", "!", "==", "!=", "<", ">", ">="}
    read = [line.tokens[place].text for place in range(line.assignment + 1, end)]
    is_truth = bool(logical & set(read)) and "?" not in read
    return end if is_truth or (len(read) == 1 and read[0] in line.scope.bits) else None


def _extremes(extent: str, states: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """What a register of that range may be reset to: zero in several notations, all ones, a state."""
    top = extent[1:].split(":")[0] if extent else "0"
    if not top.isdigit():
        yield f"{{{top[:-2]}{{1'b0}}}}" if top.endswith("-1") else f"{{({top}+1){{1'b0}}}}"
        return
    width = int(top) + 1
    if width == 1:
        yield from ("1'b0", "1'b1")
        return
    yield f"{width}'d0"
    if width <= 4:
        yield f"{width}'b{0:0{width}b}"
        yield f"{width}'d{(1 << width) - 1}"
    if width % 4 == 0:
        yield f"{width}'h{0:0{width // 4}x}"
        yield f"{width}'h{(1 << width) - 1:x}"
    yield from states.get(str(width), ())
