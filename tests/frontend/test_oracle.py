"""Compiled agents do what Python's coroutines do: results, calls, effects, exceptions and their lines."""

from __future__ import annotations

import os
from textwrap import dedent

import pytest
from hypothesis import HealthCheck, given, settings

from tests.frontend.oracle import assert_agree, define
from tests.frontend.programs import HELPERS, programs
from tests.repetitions import repetitions

EXAMPLES = int(os.environ.get("HIVE_ORACLE_EXAMPLES", repetitions(150, 500)))

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
    "exceptions of operations": """
        async def program(a):
            out = []
            for i in range(40):
                try:
                    out.append(await ask(f"{i}"))
                except Failed as error:
                    out.append(str(error))
                else:
                    mark(i)
            return out
        """,
    "an operation fails and nobody catches it": """
        async def program(a):
            for i in range(40):
                x = (
                    await ask(f"{i}")
                )
        """,
    "an exception is still handled after an await": """
        async def program(a):
            try:
                {}[a]
            except KeyError as error:
                mark(await ask("one"))
                mark(handled())
                try:
                    1 / 0
                except ZeroDivisionError:
                    mark(await ask("two"))
                    mark(handled())
                mark(handled())
                try:
                    mark(await ask("three"))
                    raise Failed("new")
                finally:
                    mark(await ask("four"))
                    mark(handled())
        """,
    "raise again": """
        async def program(a):
            try:
                try:
                    [][a]
                except LookupError:
                    await ask("before")
                    raise
            except IndexError as error:
                await ask("outside")
                raise error
        """,
    "raise from": """
        async def program(a):
            try:
                raise Failed("first")
            except Failed as error:
                await ask("q")
                raise KeyError(await ask("r")) from error
        """,
    "raise with awaits": """
        async def program(a):
            try:
                raise Failed(await ask("what")) from KeyError(await ask("why"))
            except Failed as error:
                mark(repr(error.__cause__))
            raise Failed
        """,
    "the name of an exception is gone after its handler": """
        async def program(a):
            try:
                1 / 0
            except ZeroDivisionError as error:
                await ask("q")
            return error
        """,
    "the name of an exception is assigned to and deleted": """
        async def program(a):
            for i in range(3):
                try:
                    1 / 0
                except ZeroDivisionError as error:
                    error = await ask(f"q{i}")
                    if i == 1:
                        del error
                        mark(await ask("r"))
                    else:
                        mark(error)
            return error
        """,
    "return through finally": """
        async def program(a):
            try:
                try:
                    return mark(await ask("value"))
                finally:
                    mark(await ask("inner"))
            finally:
                mark(await ask("outer"))
        """,
    "jumps through finally": """
        async def program(a):
            out = []
            for i in range(6):
                try:
                    out.append(await ask(f"{i}"))
                    if i == 1:
                        continue
                    if i == 4:
                        break
                    out.append("fell")
                finally:
                    out.append(await ask(f"finally {i}"))
                    for j in range(3):
                        if j == 1:
                            break
                    out.append("done")
            else:
                out.append("else")
            return out
        """,
    "finally overrides": """
        async def program(a):
            for i in range(3):
                try:
                    try:
                        if i == 0:
                            raise Failed("lost")
                        return await ask("lost, too")
                    finally:
                        await ask("finally")
                        if i < 2:
                            continue
                finally:
                    mark(await ask(f"outer {i}"))
        """,
    "a jump that was overridden is forgotten": """
        async def program(a):
            for i in range(2):
                try:
                    try:
                        try:
                            return "forgotten"
                        finally:
                            raise Failed(str(i))
                    except Failed:
                        mark(await ask("caught"))
                    if i:
                        1 / 0
                finally:
                    mark(await ask(f"finally {i}"))
                    mark(handled())
        """,
    "an exception in finally while another is pending": """
        async def program(a):
            try:
                raise Failed("pending")
            finally:
                await ask("q")
                {}[a]
        """,
    "break out of a while True in a try": """
        async def program(a):
            while True:
                try:
                    while True:
                        if number(await ask(f"{a}")) > 3:
                            break
                        a += 1
                except Failed:
                    a += 1
                    continue
                return a
        """,
    "with": """
        async def program(a):
            for i in range(10):
                with Manager(i) as one, Manager(int(await ask(f"{i}"))):
                    mark(await ask(f"in {one}"))
                    if i % 2:
                        {}[i]
                    if i == 8:
                        return "early"
        """,
    "with something that is no context manager": """
        async def program(a):
            with a:
                await ask("never")
        """,
    "with half a context manager": """
        class Half:
            def __enter__(self):
                mark("entered")

        async def program(a):
            with Half():
                await ask("never")
        """,
    "an instance that pretends to be a context manager": """
        class Pretender:
            pass

        async def program(a):
            pretender = Pretender()
            pretender.__enter__ = pretender.__exit__ = lambda *args: None
            with pretender:
                await ask("never")
        """,
    "match": """
        async def program(a):
            out = []
            for x in [1, [1, 2], [3], {"k": [1]}, "s", Failed("f")]:
                match x, await ask(f"{x}"):
                    case int() as n, _:
                        out.append((n, await ask("int")))
                    case [first, *rest], y if rest:
                        out.append((first, rest, y, await ask(f"{rest}")))
                    case {"k": [n], **others}, _:
                        out.append((n, others, await ask("dict")))
                        continue
                    case Failed(args=args), _:
                        out.append((args, await ask("class")))
                        break
                    case _:
                        out.append(await ask("other"))
                out.append(n)
            return out
        """,
    "comprehensions": """
        async def program(a):
            x = "outer"
            rows = [[await ask(f"{x}{y}") for y in range(x)] for x in range(3)]
            kept = {x for x in range(9) if number(await ask(f"{x}")) > 2 if x != 4}
            table = {await ask(f"k{x}"): await ask(f"v{x}") for x in "ab"}
            pairs = [(x, y, last := y) for x in range(2) for y in [await ask(f"{x}")] if y]
            nested = [(lambda x=x: [x + y for y in range(2)])() + [await ask("n")] for x in range(2)]
            generated = sorted(c for c in await ask("generated"))
            return x, rows, kept, table, pairs, last, nested, generated
        """,
    "assert": """
        async def program(a):
            assert await ask("fine"), await ask("not asked")
            assert number(await ask("four")) > 100, "wrong " + await ask("message")
        """,
    "targets": """
        async def program(a):
            xs, table = [0] * 9, {}
            xs[number(await ask("i"))] = await ask("v")
            xs[1], *xs[int(await ask("j")):], table[await ask("k")] = range(4)
            table[await ask("k")] += number(await ask("more"))
            del xs[number(await ask("j")) % 2], table[await ask("k")]
            return xs, table
        """,
    "chained comparison": """
        async def program(a):
            return (
                mark(1) < number(await ask("x")) <= mark(5) != number(await ask("y")),
                mark(9) < number(await ask("x")) < number(await ask("not asked")),
            )
        """,
    "format specification": """
        async def program(a):
            return f"{mark(a):>{await ask('width')}}{mark(a)!r:{mark(3)}}{await ask('x'):{await ask('w')}}"
        """,
    "while with an await in its test, and else": """
        async def program(a):
            for start in range(3):
                n = start
                while number(await ask(f"{start} {n}")) < 5:
                    n += 1
                    if n > 3:
                        break
                else:
                    if start == 1:
                        continue
                    mark("ended")
                mark(n)
        """,
    "helpers": """
        async def fib(n):
            return n if n < 2 else await fib(n - 1) + await fib(n - 2) + number(await ask(n)) * 0

        async def shout(text, /, *more, sep="-", **others):
            return sep.join([text, *more, await ask(f"{others}")]).upper()

        async def fails(n):
            await ask("q")
            return [][
                n
            ]

        async def program(a):
            mark(await fib(5))
            mark(await shout("x", "y", sep="+", k=1))
            try:
                await fails(1)
            except IndexError as error:
                mark(await ask("caught"))
            await fails(2)
        """,
    "a helper fails while its caller handles an exception": """
        async def fails(n):
            try:
                {}[await ask(n)]
            except KeyError as error:
                raise Failed(n) from error

        async def program(a):
            try:
                1 / 0
            except ZeroDivisionError:
                try:
                    await fails(1)
                except Failed:
                    mark(await ask("caught"))
                    mark(handled())
                await fails(2)
        """,
    "a helper gets wrong arguments": """
        async def helper(x, *, y):
            return x

        async def program(a):
            try:
                await helper(1)
            except TypeError as error:
                mark(str(error))
            await helper(1, 2, y=3)
        """,
    "methods": """
        class Base:
            async def ask(self, what):
                return await ask(f"base {what}")

        class Asker(Base):
            kind = "asker"

            def __init__(self):
                self.__secret = 4

            async def ask(self, what):
                __local = await super().ask(what)
                self.__secret += number(__local)
                return __local, self.__secret

            async def __call__(self, what):
                return await self.ask(what)

            @classmethod
            async def named(cls, what):
                return await ask(f"{cls.kind} {what}")

            @staticmethod
            async def plain(what):
                return await ask(what)

        async def program(a):
            from functools import partial

            asker = Asker()
            ways = [asker.ask, asker, Asker.named, asker.named, Asker.plain, partial(asker.ask, "w")]
            return [await way(*["x"] * (type(way) is not partial)) for way in ways], asker._Asker__secret
        """,
    "decorated helpers": """
        import functools

        def twice(function):
            @functools.wraps(function)
            async def wrapper(*args):
                return await function(*args), await function(*args)
            return wrapper

        @twice
        async def asked(what):
            return await ask(what)

        async def program(a):
            return await asked("x")
        """,
    "helpers in a function": """
        async def program(a):
            async def local(x):
                return x + await ask(x)
            return await local("x")
        """,
    "an async generator": """
        async def program(a):
            got = yield a
            for i in range(3):
                try:
                    got = number((yield i)) + number((yield await ask(f"{got}")))
                except Failed:
                    yield "failed"
                    if i == 2:
                        return
                finally:
                    yield "finally"
        """,
    "StopIteration in an async generator": """
        async def program(a):
            yield 1
            next(iter([]))
        """,
    "nested functions in handlers": """
        async def program(a):
            try:
                {}[a]
            except KeyError as error:
                def describe():
                    return f"{error} {a}"
                text = describe()
                await ask(text)
                text = (lambda: f"{error!r}")()
            return text
        """,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_hand_written_programs(name: str) -> None:
    assert_agree(define(dedent(PROGRAMS[name])), 1)


helpers = define(HELPERS, "guarded").__globals__


# The same programs in every run of the suite; others, for as long as it takes, where somebody asks for a number.
@pytest.mark.timeout(0 if "HIVE_ORACLE_EXAMPLES" in os.environ else 1800)
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="HIVE_ORACLE_EXAMPLES" not in os.environ,
    suppress_health_check=list(HealthCheck),
)
@given(programs())
def test_generated_programs(source: str) -> None:
    assert_agree(define(source, **helpers), 3)
