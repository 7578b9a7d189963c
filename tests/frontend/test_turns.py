"""The first of several samples of a state goes ahead, if the client is told to."""

from __future__ import annotations

import asyncio

import pytest
from hive_frontend.client.base import Request, Sampling
from hive_frontend.client.turns import Turns


def sample(number: int, state: str = "0") -> Request:
    return Request((), Sampling(), 1, "a", "s", state, number, "prompt")


async def test_others_wait_for_the_first_and_then_go_together() -> None:
    turns = Turns()
    log: list[str] = []

    async def ask(request: Request) -> None:
        async with turns.turn(request):
            log.append(f"+{request.state}.{request.sample}")
            await asyncio.sleep(0.01)
            log.append(f"-{request.state}.{request.sample}")

    await asyncio.gather(*(ask(sample(n)) for n in range(3)), ask(sample(0, "1")))
    assert log[:2] == ["+0.0", "+1.0"], "states do not wait for each other"
    assert log.index("-0.0") < log.index("+0.1") < log.index("+0.2") < log.index("-0.1")


@pytest.mark.parametrize("how", ["fails", "is cancelled"])
async def test_however_the_first_one_ends_the_others_go(how: str) -> None:
    turns = Turns()
    gone: list[int] = []

    async def ask(request: Request) -> None:
        async with turns.turn(request):
            if request.sample == 0:
                await asyncio.sleep(0.01 if how == "fails" else 60)
                raise ValueError
            gone.append(request.sample)

    first, second = (asyncio.ensure_future(ask(sample(n))) for n in range(2))
    await asyncio.sleep(0)
    if how == "is cancelled":
        first.cancel()
    await asyncio.wait_for(second, 5)
    assert gone == [1]
    await asyncio.gather(first, return_exceptions=True)
