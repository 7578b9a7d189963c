"""Text as it is written: pieces that say which branch they belong to."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hive_frontend import (
    Completion,
    Dialogue,
    HiveError,
    Piece,
    Request,
    TreeOfThoughts,
    agent,
    gather,
    gen,
    run,
    stream,
)
from hive_frontend.testing import ScriptedModel


@agent(supervisor=TreeOfThoughts(branch_at="talk", branching=2, limit=None))
async def program() -> str:
    talk = Dialogue(label="main").user("hello there")
    answer = await gen(talk, name="talk")
    critic, _ = await gather(gen("judge it", agent="critic"), gen(Dialogue(label="side").user("aside")))
    return answer + critic


def model() -> ScriptedModel:
    return ScriptedModel(lambda request: f"{request.text} number {request.sample}")


async def test_pieces_make_up_the_answers_of_their_branches() -> None:
    texts: dict[tuple[Any, ...], str] = {}
    async with stream(program, model=model(), seed=1) as live:
        async for piece in live:
            key = (piece.state, piece.firing, piece.part, piece.agent, piece.dialogue)
            texts[key] = texts.get(key, "") + piece.text
    assert texts == {
        ("0", 0, "", "program", "main"): "hello there number 0",
        ("0", 1, "", "program", "main"): "hello there number 1",
        ("0.0", 0, "0", "critic", None): "judge it number 0",
        ("0.0", 0, "1", "program", "side"): "aside number 0",
        ("0.1", 0, "0", "critic", None): "judge it number 0",
        ("0.1", 0, "1", "program", "side"): "aside number 0",
    }
    assert live.result.results == run(program, model=model(), seed=1).results


async def test_a_stream_can_be_followed_by_dialogue_agent_and_branch() -> None:
    async with stream(program, model=model()) as live:
        side = "".join([piece.text async for piece in live.of(dialogue="side", state="0.1")])
        critic = {piece.state async for piece in live.of(agent="critic")}
    assert side == "aside number 0"
    assert critic == {"0.0", "0.1"}


async def test_what_goes_wrong_is_raised_where_the_text_is_awaited() -> None:
    def broken(request: Request) -> str:
        raise ValueError("broken model")

    async with stream(program, model=ScriptedModel(broken)) as live:
        with pytest.raises(ValueError, match="broken model"):
            async for _ in live:
                pass
    early = stream(program, model=model())
    with pytest.raises(HiveError, match="use it in a block"):
        await anext(aiter(early))
    with pytest.raises(HiveError, match="has no result yet"):
        _ = early.result


async def test_leaving_early_cancels_the_run() -> None:
    cancelled = asyncio.Event()

    class Endless(ScriptedModel):
        async def complete(self, request: Request, on_text: Any = None) -> Completion:
            assert on_text is not None
            try:
                while True:
                    on_text("word ")
                    await asyncio.sleep(0)
            finally:
                cancelled.set()

    seen: list[Piece] = []
    async with stream(program, model=Endless({})) as live:
        async for piece in live:
            seen.append(piece)
            if len(seen) == 3:
                break
    assert cancelled.is_set()
    with pytest.raises(HiveError, match="has no result yet"):
        _ = live.result
