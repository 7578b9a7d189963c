"""Programs for the oracle: a hypothesis strategy for the supported subset.

All variables are integers but for `xs`, a list of them. Programs end because every loop draws on a fuel that
they carry in a variable. They may raise: the oracle compares exceptions, too.
"""

from __future__ import annotations

from textwrap import indent
from typing import cast

from hypothesis import strategies as st

_VARIABLES = ("a", "b", "c")


@st.composite
def expressions(draw: st.DrawFn, depth: int = 2, awaits: bool = True) -> str:
    """An expression with the value of an integer."""

    def inner() -> str:
        return cast(str, draw(expressions(depth - 1, awaits)))

    kinds = ["variable", "variable", "constant", "mark"]
    if depth:
        kinds += ["sum", "choice", "either", "pair", "compare", "method", "text", "walrus", "item", "sorted"]
        if awaits:
            kinds += ["gen", "gen", "gen", "gather", "star"]
    match draw(st.sampled_from(kinds)):
        case "variable":
            return draw(st.sampled_from(_VARIABLES))
        case "constant":
            return str(draw(st.integers(0, 3)))
        case "mark":
            return f"mark({draw(st.sampled_from(_VARIABLES))})"
        case "sum":
            operator = draw(st.sampled_from(["+", "-", "*", "%", "//"]))
            return f"({inner()} {operator} {inner()})"
        case "choice":
            return f"({inner()} if {inner()} > 2 else {inner()})"
        case "either":
            return f"({inner()} {draw(st.sampled_from(['and', 'or']))} {inner()})"
        case "pair":
            return f"({inner()}, {inner()})[{draw(st.integers(0, 1))}]"
        case "compare":
            return f"int({inner()} <= {inner()})"
        case "method":
            return f"(xs.append({inner()}) or xs[-1])"
        case "text":
            first, second = inner(), inner()
            # Before Python 3.12, f-strings with the same quotes do not nest.
            return (
                f"({first} + {second})" if "'" in first + second else f"len(f'{{{first}}}-{{{second}!r:>3}}')"
            )
        case "walrus":
            return f"({draw(st.sampled_from(_VARIABLES))} := {inner()})"
        case "item":
            return f"xs[{inner()} % 4]"
        case "sorted":
            return f"sorted([{inner()}, *xs], key=lambda x: x * a)[0]"
        case "gen":
            return f"number(await gen(str({inner()})))"
        case "gather":
            return f"sum(map(number, await gather(gen(str({inner()})), gen(repr({inner()})))))"
        case _:
            return f"max(*xs, {inner()}, {inner()})"


@st.composite
def statements(draw: st.DrawFn, depth: int, in_loop: bool) -> str:
    """One statement, or a few that belong together."""

    def value(awaits: bool = True) -> str:
        return cast(str, draw(expressions(2, awaits)))

    def block(loop: bool = in_loop) -> str:
        return indent(cast(str, draw(blocks(depth - 1, loop))), "    ")

    variable = draw(st.sampled_from(_VARIABLES))
    kinds = ["assign", "assign", "call", "call", "augment", "unpack", "item", "expression", "delete"]
    kinds += ["annotated", "chain", "verbatim"]
    if in_loop:
        kinds += ["break", "continue"]
    if depth:
        kinds += ["if", "if", "elif", "while", "for", "for", "return"]
    match draw(st.sampled_from(kinds)):
        case "assign":
            return f"{variable} = {value()}"
        case "call":
            return f"{variable} = number(await gen(str({value(awaits=False)}), name='asked'))"
        case "augment":
            return f"{variable} {draw(st.sampled_from(['+=', '-=', '*=']))} {value()}"
        case "unpack":
            return f"{variable}, (b, *c) = {value()}, [{value()}, 1, 2]\nc = len(c)"
        case "item":
            return f"xs[{value(awaits=False)} % 3] {draw(st.sampled_from(['=', '+=']))} {value()}"
        case "expression":
            return f"mark({value()})"
        case "delete":
            return f"del {variable}"
        case "annotated":
            return f"{variable}: int = {value()}"
        case "chain":
            return f"a = {variable} = {value()}"
        case "verbatim":
            return (
                f"try:\n    {variable} = {value(awaits=False)}\n"
                f"except (ZeroDivisionError, IndexError) as error:\n    mark(type(error).__name__)"
            )
        case "break":
            return "break"
        case "continue":
            return "continue"
        case "if":
            orelse = f"\nelse:\n{block()}" if draw(st.booleans()) else ""
            return f"if {value()} > 1:\n{block()}{orelse}"
        case "elif":
            return f"if {value()} > 2:\n{block()}\nelif {value()}:\n{block()}\nelse:\n{block()}"
        case "while":
            if draw(st.booleans()):
                return f"while (fuel := fuel - 1) > 0 and {value()} > 1:\n{block(True)}"
            return f"while (fuel := fuel - 1) > 0 and {value(awaits=False)} > 1:\n{block(True)}\nelse:\n{block()}"
        case "for":
            iterable = draw(
                st.sampled_from(["range(3)", "xs", "list(xs)", "reversed(xs)", "{1: 2, 3: 4}", "(a, b, 2)"])
            )
            guard = indent("fuel -= 1\nif fuel < 0:\n    break", "    ")
            orelse = f"\nelse:\n{block()}" if draw(st.booleans()) else ""
            if draw(st.booleans()):
                return f"for {variable}, b in enumerate({iterable}):\n{guard}\n{block(True)}{orelse}"
            return f"for {variable} in {iterable}:\n{guard}\n{block(True)}{orelse}"
        case _:
            return f"return [{value()}, xs]"


@st.composite
def blocks(draw: st.DrawFn, depth: int, in_loop: bool) -> str:
    """A few statements in a row."""
    return "\n".join(draw(st.lists(statements(depth, in_loop), min_size=1, max_size=3)))


@st.composite
def programs(draw: st.DrawFn) -> str:
    """The source of an `async def program(a, b=2, *, xs)`; `c` may be read before it is assigned."""
    body = "\n".join(draw(st.lists(statements(2, False), min_size=1, max_size=5)))
    return f"async def program(a, b=2, *, fuel=8):\n    xs = [5, 6]\n{indent(body, '    ')}\n    return a, b, xs\n"
