"""Compiled agents do what Python's coroutines do: results, calls, effects, exceptions and their lines."""

from __future__ import annotations

import os
from textwrap import dedent

import pytest
from hypothesis import HealthCheck, given, settings

from tests.frontend.oracle import assert_agree, define
from tests.frontend.programs import HELPERS, programs

EXAMPLES = int(os.environ.get("HIVE_ORACLE_EXAMPLES", "1000"))

PROGRAMS = {
    "straight line": """
        async def program(a):
            x = await ask(f"one {a}")
            y = await ask(f"two {x}")
            return x + y
        """,
    "no call at all": """
        async def program(a):
            return a * 2
        """,
    "falls off its end": """
        async def program(a):
            await ask("hello")
        """,
    "branches that assign different variables": """
        async def program(a):
            if number(await ask(f"{a}")) > 3:
                big = await ask("big")
            elif a:
                small = await ask("small")
                big = small
            else:
                return "none"
            return big
        """,
    "a variable that is unbound on one path": """
        async def program(a):
            if a > 100:
                x = 1
            await ask("q")
            return x
        """,
    "a deleted variable": """
        async def program(a):
            x = a
            del x
            await ask("q")
            return x
        """,
    "augmented assignment reads its target first": """
        async def program(a):
            x = 1
            x += number(await ask(f"{(x := 5)}"))
            return x
        """,
    "augmented assignment of an unbound variable fails before the call": """
        async def program(a):
            if a > 100:
                x = 1
            x += number(await ask("q"))
            return x
        """,
    "augmented items and attributes": """
        class Box:
            pass

        async def program(a):
            box = Box()
            box.n = 1
            table = {"k": [1, 2, 3]}
            box.n += number(await ask("one"))
            table[mark("k")][mark(0) : 2] += [number(await ask("two"))]
            return box.n, table
        """,
    "a missing attribute fails before the call": """
        async def program(a):
            a.missing(await ask("never made"))
        """,
    "bound methods of built-ins": """
        async def program(a):
            xs = []
            xs.append(await ask(f"{len(xs)}"))
            xs.extend([*xs, await ask(f"{len(xs)}"), *xs])
            return xs, "-".join([await ask("a"), await ask("b")])
        """,
    "evaluation order": """
        async def program(a):
            def f(*args, **kwargs):
                return args, kwargs
            first = f(mark(1), *mark([2]), await ask(f"{mark(3)}"), mark(4), k=mark(5), **mark({"z": 6}))
            return first, {mark("k"): await ask("v"), **mark({"l": 1}), mark("m"): mark(2)}
        """,
    "short circuits": """
        async def program(a):
            x = a > 100 and await ask("never")
            y = mark(0) or await ask("asked") or await ask("not asked")
            z = (await ask("then") if a else await ask("else"))
            return x, y, z, not await ask("not")
        """,
    "formatting": """
        async def program(a):
            return f"{mark(a):>4}|{await ask('x')!r}|{mark(a)!s}|{await ask('y')}"
        """,
    "nested calls": """
        async def program(a):
            return await ask("outer " + await ask("inner " + await ask("innermost")))
        """,
    "for with break, continue and else": """
        async def program(a):
            seen = []
            for i in range(9):
                x = number(await ask(f"{i}"))
                if x == 0:
                    continue
                for j, w in enumerate("abc"):
                    if (await ask(f"{i}{w}")) == "3":
                        break
                    seen.append((i, j))
                else:
                    seen.append("all")
                    if x > 5:
                        break
                seen.append(x)
            else:
                seen.append(await ask("exhausted"))
            return seen
        """,
    "jumps in the else of a loop": """
        async def program(a):
            out = []
            for i in range(5):
                for j in range(i):
                    out.append(await ask(f"{i}.{j}"))
                else:
                    if i == 2:
                        continue
                    if await ask(f"stop {i}") == "4":
                        break
                out.append(i)
            return out
        """,
    "while with calls in test and body": """
        async def program(a):
            n = 0
            while number(await ask(f"t{n}")) < 5 and n < 6:
                n += 1
                if n % 2:
                    continue
                await ask(f"even {n}")
            return n
        """,
    "while with else": """
        async def program(a):
            n = 3
            while n:
                n -= 1
                if await ask(f"{n}") == "6":
                    break
            else:
                return "exhausted", await ask("else")
            return "broken", n
        """,
    "forever": """
        async def program(a):
            i = 0
            while True:
                i += 1
                if i > 4:
                    return i
                await ask(f"{i}")
        """,
    "a list that grows while it is looped over": """
        async def program(a):
            todo = [1]
            for item in todo:
                if len(todo) < 5:
                    todo.append(number(await ask(f"{item}")))
            return todo
        """,
    "a dict that changes while it is looped over": """
        async def program(a):
            table = {1: 1}
            for key in table:
                table[key + 1] = 0
            return await ask("never asked")
        """,
    "all sorts of iterables": """
        async def program(a):
            out = []
            for x in {"k": 1, "l": 2}.items():
                out.append((x, await ask(f"{x}")))
            for x, y in zip("ab", reversed([1, 2])):
                out.append((x, y, await ask(f"{x}{y}")))
            for x in map(str, filter(None, [0, 1, 2])):
                out.append(await ask(x))
            for x in b"xy":
                out.append(await ask(f"{x}"))
            return out
        """,
    "several questions at once": """
        async def program(a):
            x, y = await ask_all("l", "r")
            zs = await ask_all(*range(3))
            return x, y, zs, await ask_all()
        """,
    "sharing between variables": """
        async def program(a):
            xs = [1]
            ys = xs
            zs = [xs, xs]
            xs.append(await ask("q"))
            await ask("r")
            return xs is ys and zs[0] is zs[1] is xs, xs, zs
        """,
    "local functions between awaits": """
        async def program(a):
            x = await ask("x")
            def twice(y):
                return y + x
            x = twice(x)
            z = await ask(x)
            return sorted([z, x], key=lambda t: (t == z, t))
        """,
    "statements that are kept as they are": """
        async def program(a):
            await ask("first")
            try:
                import json as j
                for k in range(3):
                    if k == a:
                        return "early"
                with open("/nowhere/at/all") as file:
                    pass
            except OSError as error:
                text = type(error).__name__
            finally:
                k = j.dumps(a)
            match a:
                case [x, *_]:
                    pass
                case x:
                    pass
            await ask(text)
            return text, k, x
        """,
    "an exception in a later segment": """
        async def program(a):
            for i in range(3):
                x = number(await ask(f"{i}"))
                y = [10][
                    i
                ]
            return x
        """,
    "StopIteration": """
        async def program(a):
            await ask("q")
            return next(iter([]))
        """,
    "unpacking an answer that does not fit": """
        async def program(a):
            x, y = await ask("q")
        """,
    "arguments of all kinds": """
        async def program(a, /, b=2, *rest, c=3, **others):
            await ask(f"{a}{b}{rest}{c}{others}")
            return a, b, rest, c, others
        """,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_hand_written_programs(name: str) -> None:
    assert_agree(define(dedent(PROGRAMS[name])), 1)


helpers = define(HELPERS, "guarded").__globals__


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs())
def test_generated_programs(source: str) -> None:
    assert_agree(define(source, **helpers), 3)
