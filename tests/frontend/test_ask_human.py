"""Questions to people: branches that wait, answers, and runs that are resumed."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
from hive_frontend import (
    BestOfN,
    HiveError,
    JournalError,
    Question,
    RunStore,
    Session,
    TreeOfThoughts,
    Vote,
    agent,
    arun,
    ask_human,
    gather,
    gen,
    run,
    score,
    spawn,
    tool,
)
from hive_frontend.testing import ScriptedModel
from pydantic import BaseModel, Field, field_validator

from tests.frontend.http_server import Server
from tests.frontend.test_hints import client_of, hints, hive


class Trip(BaseModel):
    city: str
    days: int = Field(ge=1)

    @field_validator("city")
    @classmethod
    def known(cls, city: str) -> str:
        if city == "Atlantis":
            raise ValueError("there is no Atlantis")
        return city


def model() -> ScriptedModel:
    return ScriptedModel(lambda request: f"{request.text}:{request.sample}")


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "runs.db")


@agent(supervisor=TreeOfThoughts(branch_at="idea", branching=3, breadth=2, limit=None))
async def thoughts(question: str) -> list[str]:
    found = []
    for turn in range(2):
        idea = await gen(f"{question}{turn}", name="idea")
        mark = await ask_human(f"How good is {idea}?", schema=int, name="judge")
        score(mark)
        found.append(await gen(f"{idea} has {mark}"))
    return found


def mark(question: Question) -> int:
    return len(question.text) * 7919 % 10 + int(question.at[-1])


def test_every_branch_of_a_tree_of_thoughts_asks(store: RunStore) -> None:
    whole = run(thoughts, "q", model=model(), seed=1, on_question=mark)
    asked: list[Question] = []
    calls = 0
    for turn in range(20):
        scripted = model()
        result = run(thoughts, "q", model=scripted, seed=1, store=store, run_id="r")
        calls += len(scripted.calls)
        if not result.questions:
            break
        found = store.get("r")
        assert found.status == "waiting"
        assert found.questions == result.questions
        assert {node.id for node in result.tree.nodes if node.status == "waiting"} == {
            question.at.rpartition(".")[0] for question in result.questions
        }
        # One at a time first, then all: each branch goes on as far as its supervisor lets it.
        for question in result.questions[: 1 if turn < 4 else None]:
            assert question not in asked
            asked.append(question)
            store.answer("r", question.at, str(mark(question)))
    assert result.results == whole.results
    assert len(asked) == len({question.at for question in asked}) == 9
    assert calls == len(result.tree.nodes) - len(asked) - 1, "no call was made twice"
    assert store.get("r").status == "finished"


def test_other_branches_go_on_and_their_results_are_there(store: RunStore) -> None:
    @agent(supervisor=BestOfN(3, at="idea"))
    async def asks_once() -> str:
        idea = await gen("q", name="idea")
        if idea == "q:1":
            return await ask_human("Really?")
        return idea

    result = run(asks_once, model=model(), store=store, run_id="r", max_concurrency=1)
    assert [found.value for found in result.results] == ["q:0", "q:2"]
    assert [question.text for question in result.questions] == ["Really?"]
    store.answer("r", result.questions[0].at, "yes")
    again = run(asks_once, model=model(), store=store, run_id="r")
    assert sorted(found.value for found in again.results) == ["q:0", "q:2", "yes"]


@pytest.mark.parametrize(
    "schema", [Trip, list[int], Literal["a", "b"], bool, float, str, dict[str, int] | None]
)
def test_in_process_and_stored_answers_are_the_same(store: RunStore, schema: Any) -> None:
    texts = {Trip: '{"city": "Rome", "days": 2}', list[int]: "[1, 2]", bool: "yes", float: "2", str: "5"}
    text = texts.get(schema, '{"a": 1}' if schema == dict[str, int] | None else "a")

    @agent
    async def asks() -> Any:
        return await ask_human("Which?", schema=schema)

    direct = run(asks, model=model(), on_question=lambda question: text)
    waiting = run(asks, model=model(), store=store, run_id="r")
    store.answer("r", waiting.questions[0].at, text)
    resumed = run(asks, model=model(), store=store, run_id="r")
    assert resumed.value == direct.value
    assert type(resumed.value) is type(direct.value)
    if schema is Trip:
        assert resumed.value == Trip(city="Rome", days=2)
        values = run(asks, model=model(), on_question=lambda question: Trip(city="Rome", days=2))
        assert values.value == resumed.value


@pytest.mark.parametrize(
    ("options", "answer", "why"),
    [
        (
            {"choices": ["yes", "no"]},
            "maybe",
            "'maybe' does not answer 'Go\\?': it must be one of 'yes', 'no'",
        ),
        ({"schema": int}, "many", "'many' does not answer 'Go\\?': Input should be a valid integer"),
        ({"schema": Trip}, '{"city": "Rome", "days": 0}', "does not answer 'Go\\?': days: "),
        ({"schema": Trip}, "Rome", "'Rome' does not answer 'Go\\?': "),
    ],
)
def test_answers_that_do_not_fit(store: RunStore, options: Any, answer: str, why: str) -> None:
    @agent
    async def asks() -> Any:
        return await ask_human("Go?", name="asks", **options)

    with pytest.raises(ValueError, match=why):
        run(asks, model=model(), on_question=lambda question: answer)
    run(asks, model=model(), store=store, run_id="r")
    with pytest.raises(ValueError, match=why):
        store.answer("r", "0.0", answer)
    assert store.get("r").status == "waiting"


def test_schemas_are_checked_by_an_extra(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    @agent
    async def asks() -> Any:
        return await gather(ask_human("Where?", schema=Trip), ask_human("How many?", schema=int))

    run(asks, model=model(), store=store, run_id="r")
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    store.answer("r", "0.0/1", "5")
    with pytest.raises(HiveError, match=r'pip install "hive\[people\]"'):
        store.answer("r", "0.0/0", '{"city": "Rome", "days": 1}')
    assert [question.text for question in store.get("r").questions] == ["Where?"]


def test_what_only_the_program_can_check(store: RunStore) -> None:
    @agent
    async def asks() -> Any:
        return await ask_human("Where?", schema=Trip)

    run(asks, model=model(), store=store, run_id="r")
    store.answer("r", "0.0", {"city": "Atlantis", "days": 1})
    with pytest.raises(
        JournalError, match=r"there is no Atlantis\. Fork the run at 0\.0 with another answer"
    ):
        run(asks, model=model(), store=store, run_id="r")
    new = store.fork("r", "0.0", {"city": "Rome", "days": 1})
    assert run(asks, model=model(), store=store, run_id=new).value == Trip(city="Rome", days=1)


@agent
async def two_questions() -> list[Any]:
    return await gather(gen("q"), ask_human("One?"), gen("r"), ask_human("Two?"))


def test_parts_of_a_gather_wait_together(store: RunStore) -> None:
    first = model()
    result = run(two_questions, model=first, store=store, run_id="r")
    assert len(first.calls) == 2, "the other parts are done"
    assert [(question.at, question.text) for question in result.questions] == [
        ("0.0/1", "One?"),
        ("0.0/3", "Two?"),
    ]
    store.answer("r", "0.0/3", "b")
    again = run(two_questions, model=first, store=store, run_id="r")
    assert [question.text for question in again.questions] == ["One?"]
    store.answer("r", "0.0/1", "a")
    assert run(two_questions, model=first, store=store, run_id="r").value == ["q:0", "a", "r:0", "b"]
    assert len(first.calls) == 2


@agent
async def child(question: str) -> str:
    return await ask_human(f"{question} {await gen('c')}?")


async def native(question: str) -> str:
    return await child(question)


@pytest.mark.parametrize("how", ["awaited", "spawned", "in a tool", "in a gather"])
def test_agents_that_work_for_others_ask(store: RunStore, how: str) -> None:
    @agent(supervisor=BestOfN(2, at="first"))
    async def parent() -> str:
        first = await gen("p", name="first")
        if how == "awaited":
            answer = await child(first)
        elif how == "spawned":
            answer = await spawn(child, first).next()
        elif how == "in a tool":
            answer = await tool(native, first)
        else:
            (answer,) = await gather(spawn(child, first))
        return f"{first} {answer}"

    scripted = model()
    result = run(parent, model=scripted, store=store, run_id="r")
    assert [question.text for question in result.questions] == ["p:0 c:0?", "p:1 c:0?"]
    assert {question.agent for question in result.questions} == {"child"}
    for question, answer in zip(result.questions, "ab", strict=True):
        store.answer("r", question.at, answer)
    again = run(parent, model=scripted, store=store, run_id="r")
    assert sorted(found.value for found in again.results) == ["p:0 a", "p:1 b"]
    assert len(scripted.calls) == 4


@agent
async def judge(candidates: list[str]) -> int:
    return int(await ask_human(f"Which of {candidates}?", choices=["0", "1"]))


@agent(
    supervisor=TreeOfThoughts(
        branch_at="idea", branching=2, breadth=1, limit=None, select=Vote(judge, votes=2)
    )
)
async def voted(question: str) -> str:
    for turn in range(2):
        question += await gen(f"{question}{turn}", name="idea")
    return question


def test_people_vote(store: RunStore) -> None:
    whole = run(voted, "q", model=model(), seed=1, on_question=lambda question: "1")
    rounds = 0
    while (result := run(voted, "q", model=model(), seed=1, store=store, run_id="r")).questions:
        rounds += 1
        for question in result.questions:
            store.answer("r", question.at, "1")
    assert result.results == whole.results
    assert rounds == 1


def test_branches_that_are_long_ask(store: RunStore) -> None:
    @agent(supervisor=BestOfN(2, at="first"))
    async def long() -> str:
        text = await gen("first", name="first")
        for _ in range(120):
            text = await gen("next")
        return text + await ask_human(f"After {text}?")

    result = run(long, model=model(), store=store, run_id="r")
    first, second = result.questions
    assert first.at != second.at
    assert first.at.startswith("h:")
    store.answer("r", first.at, " a")
    store.answer("r", second.at, " b")
    scripted = model()
    done = run(long, model=scripted, store=store, run_id="r")
    assert sorted(found.value for found in done.results) == ["next:0 a", "next:0 b"]
    assert not scripted.calls
    new = store.fork("r", first.at, " c")
    again = run(long, model=scripted, store=store, run_id=new)
    assert "next:0 c" in [found.value for found in again.results]
    assert not scripted.calls


def test_a_handler_may_leave_questions_open(store: RunStore) -> None:
    asked: list[str] = []

    async def handler(question: Question) -> str | None:
        asked.append(question.text)
        await asyncio.sleep(0)
        return None if question.text == "Two?" else "a"

    result = run(two_questions, model=model(), store=store, run_id="r", on_question=handler)
    assert [question.text for question in result.questions] == ["Two?"]
    store.answer("r", "0.0/3", "b")
    again = run(two_questions, model=model(), store=store, run_id="r", on_question=handler)
    assert again.value == ["q:0", "a", "r:0", "b"]
    assert asked == ["One?", "Two?"]


def test_functions_are_called_one_at_a_time_while_other_branches_go_on() -> None:
    inside: list[str] = []

    def slow(question: Question) -> str:
        assert not inside
        inside.append(question.text)
        import time

        time.sleep(0.02)
        inside.clear()
        return "a"

    assert run(two_questions, model=model(), on_question=slow).value == ["q:0", "a", "r:0", "a"]


def test_a_checkpoint_waits_too(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    waiting = run(two_questions, model=model(), checkpoint=file)
    assert len(waiting.questions) == 2
    again = run(two_questions, model=model(), checkpoint=file, on_question=lambda question: "a")
    assert again.value == run(two_questions, replay=file).value == ["q:0", "a", "r:0", "a"]


def test_errors_of_handlers_are_seen_by_agents(store: RunStore) -> None:
    @agent
    async def patient() -> str:
        try:
            return await ask_human("Anybody?")
        except TimeoutError:
            return await gen("nobody")

    def nobody(question: Question) -> str:
        raise TimeoutError

    first = run(patient, model=model(), store=store, run_id="r", on_question=nobody)
    again = run(patient, model=model(), store=store, run_id="r", on_question=lambda question: "me")
    assert again.value == first.value == "nobody:0", "a resumed run goes the same way"


async def test_without_anybody_who_answers() -> None:
    with pytest.raises(HiveError, match=r"nobody can answer 'One\?': give the run on_question"):
        await arun(two_questions, model=model())
    async with Session(model(), on_question=lambda question: question.text.lower()):
        assert await two_questions() == ["q:0", "one?", "r:0", "two?"]


def test_changed_questions_are_noticed(store: RunStore) -> None:
    text = "One?"

    @agent
    async def asks() -> str:
        answer = await ask_human(text)
        return answer + await ask_human("Then?")

    run(asks, model=model(), store=store, run_id="r")
    store.answer("r", "0.0", "a")
    text = "Two?"
    with pytest.raises(JournalError, match="the question was 'One\\?', and is 'Two\\?'"):
        run(asks, model=model(), store=store, run_id="r")


def test_answers_are_given_while_the_run_is_executed(store: RunStore) -> None:
    @agent(supervisor=BestOfN(2, at="first"))
    async def quick_and_slow() -> str:
        first = await gen("p", name="first")
        if first == "p:1":
            await tool(answer_the_other)
        return await ask_human(f"{first}?")

    async def answer_the_other() -> None:
        for _ in range(1000):
            await asyncio.sleep(0.005)
            if store.get("r").questions:
                return store.answer("r", "0.0.0", "early")
        raise AssertionError

    result = run(quick_and_slow, model=model(), store=store, run_id="r")
    assert store.get("r").status == "waiting"
    assert [question.at for question in store.get("r").questions] == ["0.1.0.0"]
    store.answer("r", "0.1.0.0", "late")
    again = run(quick_and_slow, model=model(), store=store, run_id="r")
    assert [found.value for found in again.results] == ["early", "late"]
    assert result.results == ()


def test_bad_questions() -> None:
    with pytest.raises(TypeError, match="takes the question as text"):
        ask_human("")
    with pytest.raises(ValueError, match="schema and choices exclude each other"):
        ask_human("Go?", schema=int, choices=["a"])  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="choices must be a list"):
        ask_human("Go?", choices="ab")
    with pytest.raises(TypeError, match="has no JSON schema"):
        ask_human("Go?", schema=asyncio.Task)


async def test_servers_are_told_that_a_person_is_waited_for(store: RunStore) -> None:
    paused: list[Any] = []

    @agent
    async def asks() -> str:
        await gen("q", raw=True)
        return await ask_human("Go?")

    def pause(request: Any) -> tuple[int, Any]:
        paused.append(request.body)
        return 200, {}

    async def slow(question: Question) -> str:
        await asyncio.sleep(0.12)
        return "yes"

    async with Server(hive(**{"POST /hive/sessions/*": pause})) as server:
        client = await client_of(server)
        await arun(asks, model=client, store=store, run_id="r")
        assert paused == [{"expects": {"event": "human"}}]
        ended = [request for request in server.received if request.method == "DELETE"]
        assert not ended, "the session has not ended"
        await arun(asks, model=client, store=store, run_id="r", on_question=slow)
        assert len(paused) == 1
        await arun(asks, model=client, on_question=slow)
        assert [hint["expects"]["event"] for hint in hints(server)] == ["human"]
        await client.aclose()


def test_flow_graphs_show_questions() -> None:
    assert "ask_human" in {node.kind for node in thoughts.graph().nodes}
    result = run(thoughts, "q", model=model(), seed=1, on_question=mark)
    assert "How good is q0:0?" in {prompt for node in result.tree.nodes for prompt in node.prompts}
