"""What type checkers accept and infer. `test_types.py` checks this file with mypy; it never runs.

Every `type: ignore` names the error that must be there: mypy reports those that are not needed.
"""

from typing import Any, assert_type

from hive_frontend import (
    ABMCTS,
    Budget,
    Reply,
    Result,
    RunResult,
    Stream,
    agent,
    arun,
    choose,
    gather,
    gen,
    run,
    score,
    spawn,
    stream,
    tool,
)
from hive_frontend.operation import Operation


@agent
async def solve(puzzle: str, depth: int = 3) -> list[int]:
    return [len(puzzle), depth]


@agent(supervisor=ABMCTS(branch_at="q", simulations=3))
async def rate(numbers: list[float], *, scale: float) -> float:
    return sum(numbers) * scale


def simulate(design: str, cycles: int = 100) -> float:
    return len(design) / cycles


async def fetch(url: str, *, retries: int = 3) -> bytes:
    return url.encode() * retries


class Solver:
    @agent
    async def solve(self, puzzle: str) -> int:
        return len(puzzle)


def enough(result: Result[Any]) -> bool:
    return result.finished


def runs() -> None:
    assert_type(run(solve, "p"), RunResult[list[int]])
    assert_type(run(solve, "p", model="http://server", seed=1, budget=Budget(calls=3)), RunResult[list[int]])
    assert_type(run(solve, "p", 5, model="http://server", stop_at=0.5), RunResult[list[int]])
    assert_type(run(solve, "p", depth=5), RunResult[list[int]])
    assert_type(run(solve, "p", depth=5, model="http://server"), RunResult[list[int]])
    assert_type(run(solve, puzzle="p", model="http://server"), RunResult[list[int]])
    assert_type(run(rate, [1, 2], scale=2), RunResult[float])
    assert_type(run(Solver().solve, "p", stop_at=enough), RunResult[int])
    assert_type(stream(solve, "p", model="http://server"), Stream[list[int]])
    run(solve, 3)  # type: ignore[arg-type]
    run(solve, 3, model="http://server")  # type: ignore[arg-type, call-arg]
    run(solve, 3, depth=5)  # type: ignore[arg-type]
    run(solve, 3, depth=5, model="http://server")  # type: ignore[arg-type, call-arg]
    run(solve, "p", "deep")  # type: ignore[arg-type, call-arg]
    run(solve, "p", 5, 7, model="http://server")  # type: ignore[call-arg]
    run(solve, "p", 5, on_error="ignore")  # type: ignore[call-arg]
    run(solve, "p", 5, modle="http://server")  # type: ignore[call-arg]
    run(rate, ["1"], scale=2)  # type: ignore[list-item]
    run(Solver().solve, 3)  # type: ignore[arg-type]
    stream(solve, 3, model="http://server")  # type: ignore[arg-type, call-arg]


async def awaited() -> None:
    assert_type(await arun(solve, "p", model="http://server"), RunResult[list[int]])
    await arun(solve, 3, model="http://server")  # type: ignore[arg-type, call-arg]
    assert_type(await spawn(solve, "p"), list[int])
    spawn(solve, 3)  # type: ignore[arg-type]
    solve(3)  # type: ignore[arg-type]


async def tools() -> None:
    assert_type(await tool(simulate, "d", cycles=5), float)
    assert_type(await tool(simulate, "d", 5, timeout=3), float)
    assert_type(await tool(simulate, "d", timeout=3), float)
    assert_type(await tool(simulate, "d", cycles=5, timeout=3), float)
    assert_type(await tool(fetch, "u"), bytes)
    assert_type(await tool(fetch, "u", retries=2), bytes)
    assert_type(await tool(fetch, "u", name="fetched"), bytes)
    assert_type(await tool(lambda: 3), int)
    tool(simulate, 3)  # type: ignore[arg-type]
    tool(simulate, 3, timeout=3)  # type: ignore[arg-type, call-arg]
    tool(simulate, 3, cycles=5, timeout=3)  # type: ignore[arg-type, call-arg]
    tool(simulate, "d", 5, 7)  # type: ignore[arg-type, call-arg]
    tool(simulate, "d", 5, timeout="3")  # type: ignore[arg-type, call-arg]
    tool(fetch, 3)  # type: ignore[arg-type]


async def gathers(many: list[Operation[Reply]]) -> None:
    text, number, found = await gather(gen("q"), gen("q", schema=int), tool(simulate, "d"), name="all")
    assert_type(text, Reply)
    assert_type(number, int)
    assert_type(found, float)
    assert_type(await gather(gen("a"), choose([1, 2])), tuple[Reply, int])
    assert_type(await gather(*many), list[Reply])
    assert_type(await gather(*(gen("q") for _ in range(3)), name="vote"), list[Reply])
    assert_type(await gather(*many, return_exceptions=True), list[Reply | Exception])
    children = await gather(solve("p"), gen("q"), gen("q"), spawn(solve, "p").next())
    assert_type(children, tuple[list[int], Reply, Reply, list[int]])
    score(0.5, text)
    score("high")  # type: ignore[arg-type]
    gather(3)  # type: ignore[call-overload]
