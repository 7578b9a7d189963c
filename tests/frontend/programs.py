"""Programs for the oracle: a hypothesis strategy for the supported language.

All variables are integers but for `xs`, a list of them. Programs end because every loop draws on a fuel that
they carry in a variable, and recursion on an argument. They may raise, and catch what they raise: the oracle
compares exceptions, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from textwrap import indent

from hypothesis import strategies as st

_VARIABLES = ("a", "b", "c")

HELPERS = """\
class Box:
    def __init__(self):
        self.__size = 1

    async def grow(self, by):
        self.__size += number(await ask(f"box {by} {self.__size}"))
        return self.__size

async def add(x, *more, times=2):
    for each in more:
        x += each * times
    mark(x)
    return x + number(await ask(f"add {x}"))

async def down(n):
    try:
        if n <= 0:
            raise Failed("bottom")
        return await down(n - 1) + 1
    finally:
        mark(await ask(f"down {n}"))

async def guarded(n):
    try:
        return await down(n % 3)
    except Failed as error:
        if n % 2:
            raise KeyError(n) from error
        return 1
"""


@dataclass(frozen=True)
class _Writer:
    """Writes parts of a program, as what is drawn says."""

    draw: st.DrawFn
    generator: bool = False
    names: tuple[str, ...] = _VARIABLES
    """Variables that expressions may read."""
    in_loop: bool = False
    in_handler: bool = False

    def pick(self, options: Sequence[str]) -> str:
        return self.draw(st.sampled_from(options))

    def maybe(self) -> bool:
        return self.draw(st.booleans())

    # Expressions

    def value(self, depth: int = 2, awaits: bool = True) -> str:
        """An expression with the value of an integer."""

        def inner() -> str:
            return self.value(depth - 1, awaits)

        kinds = ["variable", "variable", "constant", "mark", "resource", "closure"]
        if depth:
            kinds += ["sum", "choice", "either", "pair", "compare", "chain", "method", "text", "walrus"]
            kinds += ["item", "sorted", "scopes"]
            if awaits:
                kinds += ["ask", "ask", "ask", "ask all", "star", "helper", "helper", "comprehension", "spec"]
                kinds += ["yield"] * self.generator
        match self.pick(kinds):
            case "variable":
                return self.pick(self.names)
            case "constant":
                return str(self.draw(st.integers(0, 3)))
            case "mark":
                return f"mark({self.pick(self.names)})"
            case "resource":
                return "len(box_)"
            case "closure":
                return "kept[-1]()"
            case "scopes":
                return self.scopes()
            case "sum":
                return f"({inner()} {self.pick(['+', '-', '*', '%', '//'])} {inner()})"
            case "choice":
                return f"({inner()} if {inner()} > 2 else {inner()})"
            case "either":
                return f"({inner()} {self.pick(['and', 'or'])} {inner()})"
            case "pair":
                return f"({inner()}, {inner()})[{self.draw(st.integers(0, 1))}]"
            case "compare":
                return f"int({inner()} <= {inner()})"
            case "chain":
                return f"int({inner()} < {inner()} <= {inner()})"
            case "method":
                return f"(xs.append({inner()}) or xs[-1])"
            case "text":
                first, second = inner(), inner()
                # Before Python 3.12, f-strings with the same quotes do not nest.
                if "'" in first + second:
                    return f"({first} + {second})"
                return f"len(f'{{{first}}}-{{{second}!r:>3}}')"
            case "spec":
                width = self.value(0)
                return f"len(f'{{{self.value(0)}:{{number(await ask({width}))}}}}')"
            case "walrus":
                return f"({self.pick(_VARIABLES)} := {inner()})"
            case "item":
                return f"xs[{inner()} % 4]"
            case "sorted":
                return f"sorted([{inner()}, *xs], key=lambda x: x * a)[0]"
            case "ask":
                return f"number(await ask({inner()}))"
            case "ask all":
                return f"sum(map(number, await ask_all({inner()}, {inner()})))"
            case "helper":
                return self.helper(inner)
            case "comprehension":
                return self.comprehension(depth)
            case "yield":
                return f"number((yield {inner()}))"
            case _:
                return f"max(*xs, {inner()}, {inner()})"

    def scopes(self) -> str:
        """Nested functions and comprehensions whose names hide those around them."""
        v, w = self.pick(_VARIABLES), self.pick(_VARIABLES)
        return self.pick(
            [
                f"sum([f() for f in [lambda: k + {v} for k in range(2)]])",
                f"(lambda {v}: [{v} for {w} in [1]][0] + {w})({v})",
                f"sum([{v} for {v} in [1, 2]] + [(lambda: {v})()])",
                f"sum((lambda k={w}: [k + {v} for k in [k]])())",
                f"[{v} := {w}, (lambda: {v})()][1]",
            ]
        )

    def function(self) -> str:
        """A nested function that is kept, and shares variables with the program."""
        v, w = self.pick(("a", "b")), self.pick(_VARIABLES)
        match self.pick(
            ["nonlocal", "nonlocal", "late", "late", "default", "hidden", "own", "module", "cell"]
        ):
            case "nonlocal":
                return f"def local():\n    nonlocal {v}\n    {v} += 1\n    return {v}\nkept.append(local)"
            case "late":
                return f"kept.append(lambda: {w} + 1)"
            case "default":
                return f"kept.append(lambda k={v}, seen=[]: seen.append(k) or len(seen) + {w})"
            case "hidden":
                return f"kept.append(lambda: sum({w} for {w} in [1]) + {v})"
            case "own":
                body = f"    return k + {w} + number(await ask(k))"
                return f"async def own(k):\n    kept.append(lambda: k + {v})\n{body}\n{v} = await own({w})"
            case "module":
                return "kept.append(tick)"
            case _:
                return f"def local(k):\n    return lambda: k + {w}\nkept.append(local({v}))"

    def helper(self, inner: Callable[[], str]) -> str:
        match self.pick(["add", "add", "grow", "guarded", "bound"]):
            case "add":
                return f"(await add({inner()}, *{self.pick(['xs', '()'])}, times={inner()}))"
            case "grow":
                return f"(await box.grow({inner()}))"
            case "bound":
                return f"(await [add, guarded][{inner()} % 2]({inner()}))"
            case _:
                return f"(await guarded({inner()}))"

    def comprehension(self, depth: int) -> str:
        inside = replace(self, names=(*self.names, "k"), generator=False)
        first = f"{self.pick(['range(2)', 'list(xs)', '[b, 1]'])}"
        clauses = f"for k in {first}"
        if self.maybe():
            clauses += f" if {inside.value(depth - 1)} > 1"
        if self.maybe():
            clauses += f" for l in [{inside.value(0)}, k]"
            inside = replace(inside, names=(*self.names, "k", "l"))
        element = inside.value(depth - 1)
        # An iteration variable cannot be the target of a walrus, and no other is.
        match self.pick(["list", "list", "set", "dict", "nested"]):
            case "list":
                return f"sum([{element} {clauses}])"
            case "set":
                return f"sum({{{element} {clauses}}})"
            case "dict":
                return f"len({{{inside.value(0)}: {element} {clauses}}})"
            case _:
                return f"sum([sum([k * a, *(k for k in [k])]) + {element} {clauses}])"

    # Statements

    def block(self, depth: int, **changes: bool) -> str:
        """An indented block."""
        writer = replace(self, **changes)  # type: ignore[arg-type]
        count = self.draw(st.integers(1, 3))
        return indent("\n".join(writer.statement(depth - 1) for _ in range(count)), "    ")

    def statement(self, depth: int) -> str:
        """One statement, or a few that belong together."""
        variable = self.pick(_VARIABLES)
        kinds = ["assign", "assign", "call", "call", "augment", "unpack", "item", "expression", "delete"]
        kinds += [
            "kept",
            "kept",
            "opened",
            "annotated",
            "several",
            "verbatim",
            "assert",
            "raise",
            "function",
            "target",
        ]
        if self.in_loop:
            kinds += ["break", "continue"]
        if self.in_handler:
            kinds += ["raise again", "handled"]
        if self.generator:
            kinds += ["yield", "yield"]
        if depth > 0:
            kinds += ["if", "if", "elif", "while", "for", "for", "return", "match"]
            kinds += ["try", "try", "try", "finally", "finally", "with", "with"]
        match self.pick(kinds):
            case "assign":
                return f"{variable} = {self.value()}"
            case "call":
                return f"{variable} = number(await ask({self.value(awaits=False)}))"
            case "kept":
                return self.function()
            case "opened":
                return "held = Resource()\nbox_ = held.box"
            case "augment":
                return f"{variable} {self.pick(['+=', '-=', '*='])} {self.value()}"
            case "unpack":
                return f"{variable}, (b, *c) = {self.value()}, [{self.value()}, 1, 2]\nc = len(c)"
            case "item":
                return f"xs[{self.value()} % 3] {self.pick(['=', '+='])} {self.value()}"
            case "target":
                return f"xs[{self.value(1)} % 3], {variable} = {self.value(1)}, {self.value(1)}"
            case "expression":
                return f"mark({self.value()})"
            case "delete":
                return f"del {self.pick([variable, f'xs[{self.value(1)} % 3]'])}"
            case "annotated":
                return f"{variable}: int = {self.value()}"
            case "several":
                return f"a = {variable} = {self.value()}"
            case "verbatim":
                return (
                    f"try:\n    {variable} = {self.value(awaits=False)}\n"
                    f"except (ZeroDivisionError, IndexError) as error:\n    mark(type(error).__name__)"
                )
            case "assert":
                return f"assert {self.value(1)} < 4, {self.value(1)}"
            case "raise":
                # Branches share exceptions, so that none may be kept across an await before it is raised.
                cause = self.pick(["", f" from KeyError({self.value(1, awaits=False)})", " from None"])
                return f"if {self.value(1)} > 3:\n    raise Failed({self.value(1)}){cause}"
            case "function":
                return f"def local(k):\n    return k + {variable}\n{variable} = local({self.value(awaits=False)})"
            case "raise again":
                return "raise"
            case "handled":
                return "mark(handled())"
            case "yield":
                return f"{variable} = number((yield {self.value()}))"
            case "break":
                return "break"
            case "continue":
                return "continue"
            case "return":
                return f"mark({self.value()})\nreturn" if self.generator else f"return [{self.value()}, xs]"
            case "try":
                return self.try_(depth, handlers=True)
            case "finally":
                return self.try_(depth, handlers=self.maybe(), final=True)
            case kind:
                return self.compound(kind, depth)

    def compound(self, kind: str, depth: int) -> str:
        variable = self.pick(_VARIABLES)
        match kind:
            case "if":
                orelse = f"\nelse:\n{self.block(depth)}" if self.maybe() else ""
                return f"if {self.value()} > 1:\n{self.block(depth)}{orelse}"
            case "elif":
                return (
                    f"if {self.value()} > 2:\n{self.block(depth)}\nelif {self.value()}:\n{self.block(depth)}\n"
                    f"else:\n{self.block(depth)}"
                )
            case "while":
                orelse = f"\nelse:\n{self.block(depth)}" if self.maybe() else ""
                body = self.block(depth, in_loop=True)
                return f"while (fuel := fuel - 1) > 0 and {self.value()} > 1:\n{body}{orelse}"
            case "for":
                iterable = self.pick(
                    ["range(3)", "xs", "list(xs)", "reversed(xs)", "{1: 2, 3: 4}", "(a, b, 2)"]
                )
                guard = indent("fuel -= 1\nif fuel < 0:\n    break", "    ")
                orelse = f"\nelse:\n{self.block(depth)}" if self.maybe() else ""
                body = self.block(depth, in_loop=True)
                if self.maybe():
                    return f"for {variable}, b in enumerate({iterable}):\n{guard}\n{body}{orelse}"
                return f"for {variable} in {iterable}:\n{guard}\n{body}{orelse}"
            case "with":
                second = f", Manager({self.value(1)})" if self.maybe() else ""
                return f"with Manager({self.value()}) as {variable}{second}:\n{self.block(depth)}"
            case _:
                cases = [
                    f"case 0 | 1:\n{self.block(depth)}",
                    f"case {self.pick(_VARIABLES)} if {self.value(awaits=False)} > 1:\n{self.block(depth)}",
                    f"case {self.pick(['_', 'b'])}:\n{self.block(depth)}",
                ]
                return f"match {self.value()}:\n" + indent("\n".join(cases), "    ")

    def try_(self, depth: int, *, handlers: bool, final: bool = False) -> str:
        parts = [f"try:\n{self.block(depth)}"]
        if handlers:
            caught = ["except ZeroDivisionError", "except (Failed, IndexError)", "except Exception", "except"]
            start = self.draw(st.integers(0, 3))
            for head in caught[start : start + 2]:
                name = " as error" if head != "except" and self.maybe() else ""
                parts.append(f"{head}{name}:\n{self.block(depth, in_handler=True)}")
            if self.maybe():
                parts.append(f"else:\n{self.block(depth)}")
        if final:
            parts.append(f"finally:\n{self.block(depth)}")
        return "\n".join(parts)


@st.composite
def programs(draw: st.DrawFn) -> str:
    """The source of an `async def program(a, b=2, *, fuel=8)`; `c` may be read before it is assigned."""
    writer = _Writer(draw, generator=draw(st.booleans()))
    body = writer.block(4)
    last = "await ask(f'{a} {b} {xs}')" if writer.generator else "return a, b, xs"
    if writer.generator:
        body += "\n    yield a"
    start = "xs, box, kept, held = [5, 6], Box(), [lambda: 0], Resource()\n    box_ = held.box"
    return f"async def program(a, b=2, *, fuel=8):\n    {start}\n{body}\n    {last}\n"
