"""A search against the real server with the real small model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Annotated, Any, Literal

import httpx
import pytest
from hive_frontend import (
    MCTS,
    BestOfN,
    Decision,
    Dialogue,
    Drop,
    Event,
    Fire,
    HttpClient,
    ModelError,
    RunResult,
    State,
    Supervisor,
    TreeOfThoughts,
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
from hive_frontend.client import Request, Sampling
from hive_frontend.client.messages import Message
from pydantic import BaseModel, Field

from hive.server.server_process import ServerProcess, slowdown

pytestmark = pytest.mark.server


@agent(supervisor=TreeOfThoughts(branch_at="propose", branching=4, breadth=2, limit=None), name="searcher")
async def solve(numbers: str) -> str:
    way = ""
    for _ in range(2):
        prompt = f"Numbers: {numbers}. So far: {way or 'nothing'}. Write one step like 4+5=9."
        step = await gen(
            prompt,
            name="propose",
            regex="[0-9]{1,2}[+*-][0-9]{1,2}=[0-9]{1,2}",
            temperature=0.7,
            max_tokens=12,
        )
        way += f"{step}; "
        question = f"Is '{way}' right? Answer: "
        votes = await gather(
            *[
                gen(question, raw=True, choices=["sure", "no"], agent="rater", temperature=0.7, max_tokens=8)
                for _ in range(2)
            ],
            name="rate",
        )
        score(sum(vote == "sure" for vote in votes))
    return way


def server_agents(server: ServerProcess) -> dict[str, Any]:
    agents = httpx.get(f"{server.url}/hive/agents", trust_env=False).json()["agents"]
    return {entry["name"]: entry for entry in agents}


def shape(result: RunResult[Any]) -> list[tuple[Any, ...]]:
    return [(node.id, node.status, node.score, node.replies) for node in result.tree.nodes]


def test_a_search_is_constrained_replayed_and_counted(server: ServerProcess) -> None:
    # One at a time: batches of other sizes round differently, and sampled tokens may drift.
    first = run(solve, "4 5 6 10", model=server.url, seed=1, max_concurrency=1)
    agents = server_agents(server)
    assert agents["searcher"]["requests"] >= first.totals.agents["searcher"].requests > 0
    assert agents["rater"]["requests"] >= first.totals.agents["rater"].requests > 0
    votes = {reply for node in first.tree.nodes for reply in node.replies if node.id.count(".") % 2 == 0}
    assert votes <= {"sure", "no"}
    again = run(solve, "4 5 6 10", model=server.url, seed=1, max_concurrency=1)
    assert shape(again) == shape(first)
    assert again.totals.tokens_replayed > again.totals.tokens_generated
    off = HttpClient(server.url, replay="off")
    assert run(solve, "4 5 6 10", model=off, seed=1, max_concurrency=1).totals.tokens_replayed == 0


def test_a_refusal_has_the_servers_message(server: ServerProcess) -> None:
    @agent
    async def program() -> str:
        return await gen("q", regex="(", max_tokens=2)

    with pytest.raises(ModelError) as caught:
        run(program, model=server.url)
    assert caught.value.status == 400


async def running(server: ServerProcess) -> int:
    async with httpx.AsyncClient(trust_env=False) as http:
        info = (await http.get(f"{server.url}/v1/loads")).json()
    return int(info["loads"][0]["num_running_reqs"])


async def until_running(server: ServerProcess, count: int) -> None:
    deadline = time.monotonic() + 30 * slowdown()
    while (now := await running(server)) != count:
        assert time.monotonic() < deadline, f"{now} requests are running, not {count}"
        await asyncio.sleep(0.1)


STORY = "Tell a very long story."


async def test_cancelling_a_run_stops_its_request_on_the_server(server: ServerProcess) -> None:
    @agent
    async def program() -> str:
        return await gen(STORY, max_tokens=1500, temperature=1.0)

    task = asyncio.create_task(arun(program, model=server.url))
    await until_running(server, 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until_running(server, 0)


class TwoThenOne(Supervisor):
    """Fires two branches; when one has returned, the other is given up."""

    def init(self, states: Sequence[State]) -> None:
        self._states = list(states)
        self._branches: list[State] = []

    def commit(self, state: State) -> None:
        self._states.append(state)

    def fire(self) -> Iterable[Decision]:
        new, self._states = self._states, []
        for state in new:
            if state.kind == "waiting":
                self._branches += [state] if state.name == "tell" else []
                yield Fire(state, times=2 if state.name == "pick" else 1)
            elif self._branches:
                yield Drop(self._branches[0])


async def test_dropping_a_branch_aborts_its_request_and_no_other(server: ServerProcess) -> None:
    dropped = asyncio.Event()

    @agent(supervisor=TwoThenOne())
    async def program() -> str:
        short = await choose([True, False], name="pick")
        if short:
            await tool(until_running, server, 2)
            return "short"
        return await gen(STORY, name="tell", max_tokens=1500, temperature=1.0)

    @agent
    async def other() -> tuple[int, str | None]:
        # The grammar keeps the answer from ending before the branch is dropped, whatever the model would say.
        answer = await gen("Count to a hundred.", regex="[a-z ]{100,}", max_tokens=120)
        return len(answer), answer.finish_reason

    def on_event(event: Event) -> None:
        if event.kind == "dropped":
            dropped.set()

    elsewhere = asyncio.create_task(arun(other, model=server.url))
    result = await arun(program, model=server.url, on_event=on_event)
    assert result.value == "short"
    assert dropped.is_set()
    length, reason = (await elsewhere).value
    assert length >= 100
    assert reason in ("stop", "length")
    await until_running(server, 0)


async def test_children_dialogues_and_typed_answers(server: ServerProcess) -> None:
    class Count(BaseModel):
        animal: Literal["cat", "dog"]
        legs: Annotated[int, Field(ge=0, le=9)]

    @agent
    async def zoologist(animal: str) -> AsyncIterator[Count]:
        talk = Dialogue(system="You count legs.").user(f"How many legs has a {animal}?")
        while True:
            found = await gen(talk, schema=Count, max_tokens=64, temperature=0.7)
            critique = yield found
            talk.user(str(critique))

    @agent
    async def asker() -> list[Count]:
        expert = spawn(zoologist, "dog")
        first = await expert.next()
        await expert.resume("Are you sure? Count again.")
        return [first, await expert.next()]

    result = await arun(asker, model=server.url, seed=1)
    assert result.value is not None
    assert all(isinstance(found, Count) for found in result.value)
    assert result.totals.agents["zoologist"].requests == 2
    shown = Dialogue(system="You count legs.").user("hi").render(server.url)
    assert shown.index("You count legs.") < shown.index("hi")
    assert shown.endswith("assistant\n"), "the prompt ends where the model begins to write"


async def test_answers_are_streamed_by_branch(server: ServerProcess) -> None:
    @agent(supervisor=TreeOfThoughts(branch_at="ask", branching=2, limit=None))
    async def program() -> str:
        return await gen("Name three colours.", name="ask", max_tokens=12, temperature=0.9)

    texts: dict[int, str] = {}
    pieces = 0
    async with stream(program, model=server.url, seed=2) as live:
        async for piece in live:
            pieces += 1
            texts[piece.firing] = texts.get(piece.firing, "") + piece.text
    assert [texts[0], texts[1]] == sorted(
        (found.value for found in live.result.results), key=[texts[0], texts[1]].index
    )
    assert pieces > 4, "piece by piece, not all at once"


def test_best_of_n_and_mcts(server: ServerProcess) -> None:
    @agent
    async def digits() -> str:
        text = ""
        for _ in range(2):
            text += await gen(
                f"A number: {text}", raw=True, name="digit", regex="[0-9]", max_tokens=2, temperature=1.0
            )
            score(int(text[-1]))
        return text

    best = run(digits, model=server.url, seed=1, supervisor=BestOfN(3))
    assert len(best.results) == 3
    assert best.value == max((found.value for found in best.results), key=lambda value: int(value[-1]))
    tree = run(
        digits, model=server.url, seed=1, supervisor=MCTS(branch_at="digit", simulations=6, branching=3)
    )
    assert tree.results
    assert tree.totals.tokens_replayed > 0, "a state that is expanded again replays its logits"


def asked(server: ServerProcess, client: HttpClient, prompt: str | None, *listeners: Any) -> Any:
    """Four samples of one state, at once."""
    sampling = Sampling(max_tokens=8, temperature=0.9)
    messages = () if prompt else (Message("user", "Name a colour."),)
    calls = [
        client.complete(
            Request(messages, sampling, 11, "painter", "s-together", "0.1", sample, prompt),
            *listeners[sample : sample + 1],
        )
        for sample in range(4)
    ]
    return asyncio.gather(*calls)


@pytest.mark.parametrize("prompt", [None, "The colour of the sky is"])
async def test_calls_that_travel_together_are_answered_as_alone(
    server: ServerProcess, prompt: str | None
) -> None:
    together, alone = HttpClient(server.url), HttpClient(server.url, merge=False)
    singly = await asked(server, alone, prompt)
    # What was computed and what came from a cache depends on what was asked before.
    same = [
        each._replace(tokens_generated=0, tokens_replayed=0, cached_tokens=0)
        for answers in (await asked(server, together, prompt), singly)
        for each in answers
    ]
    assert same[: len(singly)] == same[len(singly) :]
    heard: list[list[str]] = [[], [], [], []]
    streamed = await asked(server, together, prompt, *(pieces.append for pieces in heard))
    assert [each.text for each in streamed] == [each.text for each in singly]
    assert ["".join(pieces) for pieces in heard] == [each.text for each in singly]
    assert together._is_hive
    assert together._has_hive_generate
    await together.aclose()
    await alone.aclose()


@pytest.mark.parametrize("streams", [False, True])
async def test_sglang_answers_lists(server: ServerProcess, streams: bool) -> None:
    client = HttpClient(server.url)
    client._is_hive = client._has_hive_generate = False
    heard: list[list[str]] = [[], [], [], []]
    listeners = [pieces.append for pieces in heard] if streams else []
    answers = await asked(server, client, "The colour of the sea is", *listeners)
    assert client._takes_lists
    assert all(len(each.output_ids) == each.tokens_generated + each.tokens_replayed > 0 for each in answers)
    assert not streams or ["".join(pieces) for pieces in heard] == [each.text for each in answers]
    # Each of them was drawn with a seed of its own.
    assert len({each.text for each in answers}) > 1
    await client.aclose()
