"""The end of a session: a Hive server is told once, however the run ended, and what comes of that changes nothing."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Literal

import pytest
from hive_frontend import Completion, HttpClient, Request, Session, agent, arun, gen
from hive_frontend.testing import ScriptedModel

from tests.frontend.http_server import Answer, Received, Server

Ending = Literal["result", "error", "refusal", "cancelled"]


def lose_connection(request: Received) -> Answer:
    raise ConnectionError


async def hang(request: Received) -> Answer:
    await asyncio.sleep(60)
    raise AssertionError


END_ANSWERS: dict[str, Any] = {
    "taken": lambda request: (200, {}),
    "unknown session": lambda request: (404, {"detail": "no such session"}),
    "failed": lambda request: (500, {"error": "out of order"}),
    "no JSON": lambda request: (200, b"<html>"),
    "lost": lose_connection,
    "hangs": hang,
}
WARNINGS = {
    "failed": "the server answered 500: out of order",
    "no JSON": "the answer is not a JSON object",
    "lost": "without an answer",
    "hangs": "no answer within 0.2 s",
}


@pytest.mark.parametrize("end_answer", END_ANSWERS)
@pytest.mark.parametrize("ending", ["result", "error", "refusal", "cancelled"])
async def test_the_server_is_told_that_a_session_ended(
    ending: Ending, end_answer: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("hive_frontend.search.registrations._END_SESSION_TIMEOUT_S", 0.2)
    asked = asyncio.Event()

    async def generate(request: Received) -> Answer:
        asked.set()
        if ending == "cancelled":
            await asyncio.sleep(60)
        if ending == "refusal":
            return 400, {"detail": "temperature is too high"}
        return 200, {"text": "three", "meta_info": {"completion_tokens": 1}}

    routes = {
        "POST /hive/agents": lambda request: (200, {}),
        "POST /generate": generate,
        "DELETE /hive/sessions/*": END_ANSWERS[end_answer],
    }

    @agent
    async def program() -> str | int:
        answer = await gen("q", raw=True)
        return int(answer) if ending == "error" else answer

    async with Server(routes) as server:
        client = HttpClient(server.url, attempts=1)
        with caplog.at_level(logging.WARNING, logger="hive_frontend.search.registrations"):
            run = asyncio.create_task(arun(program, model=client))
            await asyncio.wait_for(asked.wait(), 5)
            if ending == "cancelled":
                run.cancel()
            await asyncio.wait({run}, timeout=5)
        await client.aclose()

    if ending == "result":
        assert run.result().value == "three"
    elif ending == "cancelled":
        assert run.cancelled()
    else:
        message = {"error": "invalid literal", "refusal": "400: temperature is too high"}[ending]
        assert message in str(run.exception())
    (call,) = server.asked("/generate")
    session = call.body["sampling_params"]["custom_params"]["hive"]["session"]
    # The end of a session is sent again on another connection if the first one was lost.
    ends = [request.path for request in server.received if request.method == "DELETE"]
    assert ends == [f"/hive/sessions/{session}"] * (2 if end_answer == "lost" and len(ends) > 1 else 1)
    assert server.received[-1].method == "DELETE", "nothing comes behind the end"
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == (end_answer in WARNINGS)
    if told:
        assert told[0].startswith(f"the server could not be told that session {session} ended: ")
        assert WARNINGS[end_answer] in told[0]


async def test_every_model_learns_of_the_end_even_if_one_is_unreachable(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(ScriptedModel):
        async def end_session(self, session: str) -> None:
            raise RuntimeError

    whole = ScriptedModel({"*": "b"})

    @agent(model=whole)
    async def other() -> str:
        return await gen("q")

    @agent
    async def program() -> str:
        return await gen("q") + await other()

    with caplog.at_level(logging.WARNING, logger="hive_frontend.search.registrations"):
        result = await arun(program, model=Broken({"*": "a"}))
    assert result.value == "ab"
    assert whole.ended == [result.session]
    assert "RuntimeError()" in caplog.text


async def test_no_registration_comes_behind_the_end_of_its_session() -> None:
    class Slow(ScriptedModel):
        async def register(self, agent: str, session: str) -> None:
            began.set()
            try:
                await asyncio.sleep(60)
            finally:
                assert not self.ended
                given_up.append(agent)

        async def complete(self, request: Request, on_text: Any = None) -> Completion:
            raise AssertionError

    began = asyncio.Event()
    given_up: list[str] = []

    async def ask() -> None:
        async with Session(model):
            await gen("q", agent="judge")

    model = Slow({})
    task = asyncio.create_task(ask())
    await asyncio.wait_for(began.wait(), 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert given_up == ["judge"]
    assert len(model.ended) == 1
