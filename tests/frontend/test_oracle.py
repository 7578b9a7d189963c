"""Compiled agents do what Python's coroutines do: results, calls, effects, exceptions and their lines."""

from __future__ import annotations

import os
from textwrap import dedent

import pytest
from hypothesis import HealthCheck, given, settings

from tests.frontend.oracle import assert_agree, define
from tests.frontend.programs import programs

EXAMPLES = int(os.environ.get("HIVE_ORACLE_EXAMPLES", "300"))

PROGRAMS = {
    "straight line": """
        async def program(a):
            x = await gen(f"one {a}")
            y = await gen(f"two {x}", name="second", temperature=0.5)
            return x + y
        """,
    "no call at all": """
        async def program(a):
            return a * 2
        """,
    "falls off its end": """
        async def program(a):
            await gen("hello")
        """,
    "branches that assign different variables": """
        async def program(a):
            if number(await gen(f"{a}")) > 3:
                big = await gen("big")
            elif a:
                small = await gen("small")
                big = small
            else:
                return "none"
            return big
        """,
    "a variable that is unbound on one path": """
        async def program(a):
            if a > 100:
                x = 1
            await gen("q")
            return x
        """,
    "a deleted variable": """
        async def program(a):
            x = a
            del x
            await gen("q")
            return x
        """,
    "augmented assignment reads its target first": """
        async def program(a):
            x = 1
            x += number(await gen(f"{(x := 5)}"))
            return x
        """,
    "augmented assignment of an unbound variable fails before the call": """
        async def program(a):
            if a > 100:
                x = 1
            x += number(await gen("q"))
            return x
        """,
    "augmented items and attributes": """
        class Box:
            pass

        async def program(a):
            box = Box()
            box.n = 1
            table = {"k": [1, 2, 3]}
            box.n += number(await gen("one"))
            table[mark("k")][mark(0) : 2] += [number(await gen("two"))]
            return box.n, table
        """,
    "a missing attribute fails before the call": """
        async def program(a):
            a.missing(await gen("never made"))
        """,
    "bound methods of built-ins": """
        async def program(a):
            xs = []
            xs.append(await gen(f"{len(xs)}"))
            xs.extend([*xs, await gen(f"{len(xs)}"), *xs])
            return xs, "-".join([await gen("a"), await gen("b")])
        """,
    "evaluation order": """
        async def program(a):
            def f(*args, **kwargs):
                return args, kwargs
            first = f(mark(1), *mark([2]), await gen(f"{mark(3)}"), mark(4), k=mark(5), **mark({"z": 6}))
            return first, {mark("k"): await gen("v"), **mark({"l": 1}), mark("m"): mark(2)}
        """,
    "short circuits": """
        async def program(a):
            x = a > 100 and await gen("never")
            y = mark(0) or await gen("asked") or await gen("not asked")
            z = (await gen("then") if a else await gen("else"))
            return x, y, z, not await gen("not")
        """,
    "formatting": """
        async def program(a):
            return f"{mark(a):>4}|{await gen('x')!r}|{mark(a)!s}|{await gen('y')}"
        """,
    "nested calls": """
        async def program(a):
            return await gen("outer " + await gen("inner " + await gen("innermost")))
        """,
    "for with break, continue and else": """
        async def program(a):
            seen = []
            for i in range(9):
                x = number(await gen(f"{i}"))
                if x == 0:
                    continue
                for j, w in enumerate("abc"):
                    if (await gen(f"{i}{w}")) == "3":
                        break
                    seen.append((i, j))
                else:
                    seen.append("all")
                    if x > 5:
                        break
                seen.append(x)
            else:
                seen.append(await gen("exhausted"))
            return seen
        """,
    "jumps in the else of a loop": """
        async def program(a):
            out = []
            for i in range(5):
                for j in range(i):
                    out.append(await gen(f"{i}.{j}"))
                else:
                    if i == 2:
                        continue
                    if await gen(f"stop {i}") == "4":
                        break
                out.append(i)
            return out
        """,
    "while with calls in test and body": """
        async def program(a):
            n = 0
            while number(await gen(f"t{n}")) < 5 and n < 6:
                n += 1
                if n % 2:
                    continue
                await gen(f"even {n}")
            return n
        """,
    "while with else": """
        async def program(a):
            n = 3
            while n:
                n -= 1
                if await gen(f"{n}") == "6":
                    break
            else:
                return "exhausted", await gen("else")
            return "broken", n
        """,
    "forever": """
        async def program(a):
            i = 0
            while True:
                i += 1
                if i > 4:
                    return i
                await gen(f"{i}")
        """,
    "a list that grows while it is looped over": """
        async def program(a):
            todo = [1]
            for item in todo:
                if len(todo) < 5:
                    todo.append(number(await gen(f"{item}")))
            return todo
        """,
    "a dict that changes while it is looped over": """
        async def program(a):
            table = {1: 1}
            for key in table:
                table[key + 1] = 0
            return await gen("never asked")
        """,
    "all sorts of iterables": """
        async def program(a):
            out = []
            for x in {"k": 1, "l": 2}.items():
                out.append((x, await gen(f"{x}")))
            for x, y in zip("ab", reversed([1, 2])):
                out.append((x, y, await gen(f"{x}{y}")))
            for x in map(str, filter(None, [0, 1, 2])):
                out.append(await gen(x))
            for x in b"xy":
                out.append(await gen(f"{x}"))
            return out
        """,
    "gather": """
        async def program(a):
            x, y = await gather(gen("l"), gen("r"))
            zs = await gather(*[gen(f"{i}", agent="other") for i in range(3)], name="many")
            return x, y, zs, await gather()
        """,
    "sharing between variables": """
        async def program(a):
            xs = [1]
            ys = xs
            zs = [xs, xs]
            xs.append(await gen("q"))
            await gen("r")
            return xs is ys and zs[0] is zs[1] is xs, xs, zs
        """,
    "local functions between awaits": """
        async def program(a):
            x = await gen("x")
            def twice(y):
                return y + x
            x = twice(x)
            z = await gen(x)
            return sorted([z, x], key=lambda t: (t == z, t))
        """,
    "statements that are kept as they are": """
        async def program(a):
            await gen("first")
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
            await gen(text)
            return text, k, x
        """,
    "an exception in a later segment": """
        async def program(a):
            for i in range(3):
                x = number(await gen(f"{i}"))
                y = [10][
                    i
                ]
            return x
        """,
    "StopIteration": """
        async def program(a):
            await gen("q")
            return next(iter([]))
        """,
    "unpacking an answer that does not fit": """
        async def program(a):
            x, y = await gen("q")
        """,
    "arguments of all kinds": """
        async def program(a, /, b=2, *rest, c=3, **others):
            await gen(f"{a}{b}{rest}{c}{others}")
            return a, b, rest, c, others
        """,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_hand_written_programs(name: str) -> None:
    assert_agree(define(dedent(PROGRAMS[name])), 1)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs())
def test_generated_programs(source: str) -> None:
    assert_agree(define(source), 3)
