"""Prompt Choreography in programs: descriptions, forks, searches, usage, journals, and models of tests."""

from __future__ import annotations

import asyncio
import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
from hive_frontend import (
    BestOfN,
    Budget,
    BudgetExceeded,
    CachedMessage,
    Client,
    CompileError,
    Completion,
    HiveError,
    ModelError,
    NoModelError,
    Piece,
    Reply,
    Request,
    Session,
    TextMessages,
    TreeOfThoughts,
    agent,
    arun,
    decode,
    fail,
    gather,
    gen,
    prefill,
    run,
    score,
    spawn,
)
from hive_frontend.client import MessageCall, OnText, Sampling
from hive_frontend.operations import fork as forks
from hive_frontend.testing import FunctionModel, ScriptedModel
from hypothesis import given
from hypothesis import strategies as st


def message(**fields: Any) -> CachedMessage:
    return CachedMessage(**{"id": "m", "session": "s", "text": "one two", "tokens": 2, "offset": 0, **fields})


def echo() -> FunctionModel:
    return FunctionModel(lambda request: f"<{request.text}>{request.sample}")


DOC = message()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"text": 3}, "the text must be a string or a list of token ids, not of type int"),
        ({"text": ""}, "prefill: the text must not be empty"),
        ({"text": []}, "the text must not be empty"),
        ({"text": [True]}, "a string or a list of token ids"),
        ({"text": [-1]}, "a string or a list of token ids"),
        ({"text": b"ab"}, "a string or a list of token ids"),
        ({"parents": DOC}, "parents must be a list of messages, such as .* not of type CachedMessage"),
        ({"parents": "m-1"}, "parents must be a list of messages, .* not 'm-1'"),
        ({"parents": [DOC, "m-1"]}, "parent 1 is 'm-1'; pass the message that prefill or decode returned"),
        ({"parents": [Reply("text")]}, "parent 0 is 'text'; pass the message"),
        ({"parents": [DOC, message()]}, "parent 1 is <message m .*, which is already in the list"),
        ({"parents": [prefill("x")]}, "parent 0 is a call without `await`"),
        ({"parents": [DOC], "offsets": []}, "offsets has 0 positions for 1 parents; give one for each"),
        ({"parents": [DOC], "offsets": [-1]}, "offset 0 must be a position of at least 0, not -1"),
        ({"parents": [DOC], "offsets": [True]}, "offset 0 must be a position of at least 0, not True"),
        ({"parents": [DOC], "offsets": 3}, "offsets must be a list of a position or None for each parent"),
        ({"new_offset": -1}, "new_offset must be a position of at least 0"),
        ({"agent": "two words"}, "agent must be 1 to 128 characters"),
    ],
)
def test_bad_prefills(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises((TypeError, ValueError), match=complaint):
        prefill(**{"text": "x", **arguments})


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"header": ""}, "decode: the header must not be empty"),
        ({"header": None}, "the header must be a string or a list of token ids"),
        ({"max_tokens": 0}, "max_tokens must be an integer of at least 1"),
        ({"regex": "a", "choices": ["b"]}, "exclude each other"),
        ({"json_schema": "{"}, "json_schema must be a JSON schema"),
        ({"sample": -1}, "sample must be from 0"),
        ({"corrector": 3}, "corrector must be a name such as .* or a dict"),
    ],
)
def test_bad_decodes(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises((TypeError, ValueError), match=complaint):
        decode(**{"header": "A:", **arguments})


def test_what_is_given_is_fixed_when_the_call_is_described() -> None:
    parents, offsets, corrector = [DOC], [3], {"kind": "blend", "share": 0.1}
    call = decode("A:", parents=parents, offsets=offsets, corrector=corrector)
    parents.append(DOC)
    offsets[0] = 9
    corrector["share"] = 0.9
    assert (call.parents, call.offsets, call.corrector) == (  # type: ignore[attr-defined]
        (DOC,),
        (3,),
        {"kind": "blend", "share": 0.1},
    )
    assert copy.deepcopy(call) is call


lengths = st.integers(1, 50)
positions = st.none() | st.integers(0, 500)


@given(st.lists(st.tuples(lengths, positions), max_size=5), positions)
def test_where_a_message_begins(layout: list[tuple[int, int | None]], new_offset: int | None) -> None:
    request = Request((), Sampling(), 0, "a", "s", "0", 0, prompt="x")
    parents = tuple(message(tokens=tokens, offset=99) for tokens, _ in layout)
    call = MessageCall(request, parents, tuple(place for _, place in layout), new_offset)
    taken: list[range] = []
    for tokens, place in layout:
        start = place if place is not None else (taken[-1].stop if taken else 0)
        taken.append(range(start, start + tokens))
    expected = new_offset if new_offset is not None else (taken[-1].stop if taken else 0)
    assert call.offset == expected
    if all(place is None for _, place in layout):
        assert call._replace(offsets=()).offset == expected
        assert new_offset is not None or expected == sum(tokens for tokens, _ in layout)


async def test_handles_are_data() -> None:
    async with Session(echo()):
        system = await prefill("be brief")
        answer = await decode("A:", parents=[system])
    for handle in system, answer:
        assert copy.deepcopy([handle, handle]) == [handle, handle]
        assert copy.copy(handle) is handle
        assert forks.copy({"kept": [handle]}, {})["kept"][0] is handle
        loaded = pickle.loads(pickle.dumps(handle))
        assert loaded == handle
        assert (loaded.reply, loaded.tokens_generated, loaded.finish_reason) == (
            handle.reply,
            handle.tokens_generated,
            handle.finish_reason,
        )
        assert CachedMessage.from_json(handle.to_json()) == handle
    assert isinstance(pickle.loads(pickle.dumps(answer)).text, Reply)
    assert (answer.text, answer.content) == ("<be briefA:>0", "A:<be briefA:>0")
    assert (answer.offset, answer.tokens, answer.end) == (2, 3, 5)
    assert repr(system) == "<message m-1 at 0 to 2: 'be brief'>"
    assert repr(message(text="x" * 60)).endswith("...'>")
    with pytest.raises(AttributeError):
        answer.id = "other"  # type: ignore[misc]


async def test_a_model_of_tests_keeps_messages_as_a_server_does() -> None:
    model = echo()
    async with Session(model):
        system = await prefill("a b c")
        far = await prefill([7, 8], parents=[system], offsets=[10], name="far")
        assert (far.offset, far.end, far.from_tokens, far.content) == (13, 15, True, "")
        await system.delete()
        await system.delete()
        with pytest.raises(ModelError, match="there is no message 'm-1'"):
            await decode("A:", parents=[far, system])
        with pytest.raises(ModelError, match="there is no message 'm-1'") as caught:
            await prefill("x", parents=[system])
        assert caught.value.status == 400
        last = await decode("A:", parents=[far])
    async with Session(model):
        with pytest.raises(ModelError, match="was deleted, or its session has ended"):
            await decode("A:", parents=[last])
    assert [call.request.prompt for call in model.made] == ["a b c", "", "A:"]
    assert model.made[1].offsets == (10,)
    assert [request.prompt for request in model.calls] == ["A:"]


async def test_scripts_answer_decodes_by_name_and_not_prefills() -> None:
    model = ScriptedModel({"answer": ["one", Completion("two", 5, 6, "length")]})
    async with Session(model) as session:
        await prefill("x", name="answer")
        first = await decode("A:", name="answer")
        second = await decode("B:", name="answer")
        assert (first.text, second.text, second.finish_reason) == ("one", "two", "length")
        assert (second.tokens, second.tokens_replayed) == (12, 6)
        assert session.totals.requests == 3
        assert (session.totals.tokens_generated, session.totals.tokens_replayed) == (6, 6)


async def test_a_client_that_cannot_says_what_it_takes() -> None:
    class Plain(Client):
        async def complete(self, request: Request, on_text: OnText | None = None) -> Completion:
            return Completion("x", 1)

    async with Session(Plain()):
        for call in prefill("x"), decode("A:"), DOC.delete():
            with pytest.raises(HiveError, match=r"Plain cannot keep messages.* --hive-kv-segments"):
                await call
    with pytest.raises(NoModelError, match="outside a run"):
        await prefill("x")
    async with Session(None):
        with pytest.raises(NoModelError, match="needs a model"):
            await prefill("x")


# Searches


@agent(supervisor=TreeOfThoughts(branch_at="think", branching=3, breadth=2, limit=None))
async def think(question: str) -> list[str]:
    system = await prefill(f"Solve {question}", name="system")
    thoughts: list[CachedMessage] = []
    for depth in range(2):
        thought = await decode(f"T{depth}:", parents=[system, *thoughts], name="think")
        thoughts.append(thought)
        votes = await gather(
            *[decode("V:", parents=[thought, system], agent="voter", name="vote") for _ in range(2)]
        )
        for vote in votes:
            await vote.delete()
        score(int(thought.text[-1]))
    return [thought.id for thought in thoughts]


def numbered() -> FunctionModel:
    return FunctionModel(lambda request: f"{len(request.text) * 7919 % 89}-{request.sample}")


def test_branches_share_what_was_made_before_and_draw_again() -> None:
    model = numbered()
    result = run(think, "q", model=model, seed=3)
    prefills = [call for call in model.made if call.request.prompt == "Solve q"]
    thoughts = [call for call in model.made if call.request.name == "think"]
    assert len(prefills) == 1
    first = [call for call in thoughts if len(call.parents) == 1]
    assert [call.request.sample for call in first] == [0, 1, 2]
    assert len({call.request.seed for call in first}) == 1, "a base seed, which the sample makes the seed"
    assert {call.parents[0].id for call in thoughts} == {"m-1"}
    second = [call.parents[1] for call in thoughts if len(call.parents) == 2]
    assert len(second) == 6
    assert len({parent.id for parent in second}) == 2, "each of two branches continues from its own thought"
    assert result.totals.agents["voter"].requests == 2 * (3 + 6)
    assert result.totals.requests == len(model.made)
    node = next(node for node in result.tree.nodes if node.name == "vote")
    assert node.replies
    assert node.prompts[0].endswith("V:")
    assert node.prompts[0].startswith("T0:")
    root = result.tree.nodes[0]
    assert (root.name, root.prompts, root.replies) == ("system", ["Solve q"], [])
    assert result.tree.nodes[1].replies == [], "a prefill has no reply"


def test_the_same_requests_whatever_comes_first() -> None:
    def asked(delay: Any) -> list[Any]:
        model = FunctionModel(lambda request: f"{request.sample}", delay=delay)
        run(think, "q", model=model, seed=3)
        return sorted((call.state, call.sample, call.seed, call.prompt, call.agent) for call in model.calls)

    assert asked(None) == asked(lambda request: 0.002 * (3 - request.sample % 3))


async def test_the_native_run_asks_like_the_compiled_one() -> None:
    @agent
    async def program() -> str:
        system = await prefill("s")
        both = await gather(decode("A:", parents=[system]), decode("B:", parents=[system]))
        await system.delete()
        return str((await decode("C:", parents=both)).text)

    compiled, native = echo(), echo()
    result = await arun(program, model=compiled, seed=7)
    async with Session(native, seed=7):
        assert await program() == result.value
    assert [call._replace(session="") for call in compiled.calls] == [
        call._replace(session="") for call in native.calls
    ]
    assert [node.kind for node in program.graph().nodes] == [
        "start",
        "prefill",
        "gather",
        "delete",
        "decode",
        "return",
    ]


def test_the_compiler_knows_the_calls() -> None:
    with pytest.raises(CompileError, match="a call of decode that is not awaited"):

        @agent
        async def forgotten() -> None:
            decode("A:")
            await gen("q")

    with pytest.raises(CompileError, match="a state name that is not a literal"):

        @agent
        async def unnamed(name: str) -> None:
            await prefill("x", name=name)

    assert think.graph().state_names[:3] == ("system", "think", "vote")


def test_handles_go_to_children_and_come_back() -> None:
    @agent
    async def helper(doc: CachedMessage) -> CachedMessage:
        return await decode("H:", parents=[doc])

    @agent
    async def boss() -> str:
        doc = await prefill("doc")
        helped = await gather(spawn(helper, doc), spawn(helper, doc))
        return (await decode("B:", parents=helped)).header + helped[0].id

    model = echo()
    assert run(boss, model=model).value == "B:m-2"
    assert {call.request.agent for call in model.made} == {"boss", "helper"}


def test_budgets_bound_both_calls() -> None:
    @agent
    async def program(decodes: int) -> int:
        made = [await prefill("a")]
        try:
            for _ in range(decodes):
                made.append(await decode("A:", parents=made))
        except BudgetExceeded as spent:
            return len(made) if "calls" in str(spent) else -len(made)
        return 0

    model = FunctionModel(lambda request: "one two three")
    assert run(program, 5, model=model, budget=Budget(calls=3)).value == 3
    assert run(program, 5, model=model, budget=Budget(tokens=4)).value == -3
    assert run(program, 1, model=model, budget=Budget(calls=2, tokens=9)).value == 0
    slow = FunctionModel(lambda request: "x", delay=lambda request: 5)
    assert run(program, 1, model=slow, budget=Budget(seconds=0.05)).value == -1


def test_pieces_of_a_decode() -> None:
    pieces: list[Piece] = []

    @agent(supervisor=BestOfN(2, at="answer"))
    async def program() -> str:
        answer = await decode("A:", parents=[await prefill("x")], name="answer")
        if answer.text.startswith("no"):
            fail("no")
        return str(answer.text)

    result = run(
        program, model=FunctionModel(lambda request: f"yes it is {request.sample}"), on_piece=pieces.append
    )
    for found in result.results:
        firing = int(found.value[-1])
        assert "".join(piece.text for piece in pieces if piece.firing == firing) == found.value
    assert {piece.name for piece in pieces} == {"answer"}


def test_deletes_and_dealt_with_errors_are_in_the_journal(tmp_path: Path) -> None:
    @agent
    async def program() -> list[str]:
        doc = await prefill("doc")
        await doc.delete()
        try:
            await decode("A:", parents=[doc])
        except ModelError as error:
            return [str(error), str(await gen("q"))]
        return []

    file = tmp_path / "run.jsonl"
    first = run(program, model=echo(), checkpoint=file)
    assert first.value is not None
    assert "no message 'm-1'" in first.value[0]
    assert run(program, replay=file).value == first.value
    resumed = echo()
    assert run(program, model=resumed, checkpoint=file).value == first.value
    assert resumed.made == []
    assert resumed.calls == []


def test_a_resumed_run_whose_messages_are_not_needed_continues(tmp_path: Path) -> None:
    @agent
    async def program() -> str:
        answer = await decode("A:", parents=[await prefill("doc")])
        fresh = await prefill("new")
        return f"{answer.text}|{(await decode('B:', parents=[fresh])).text}"

    file = tmp_path / "run.jsonl"
    whole = run(program, model=echo(), checkpoint=file)
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:-2]))
    model = echo()
    assert run(program, model=model, checkpoint=file).value == whole.value
    assert [call.request.prompt for call in model.made] == ["new", "B:"]


# Messages as texts


def test_texts_run_the_same_program_as_ordinary_requests() -> None:
    plain = numbered()
    result = run(think, "q", model=TextMessages(plain), seed=3)
    assert plain.made == []
    kept = numbered()
    assert run(think, "q", model=kept, seed=3).totals.agents == result.totals.agents
    by_place = lambda call: (call.state, call.sample)  # noqa: E731
    assert [call._replace(session="") for call in sorted(plain.calls, key=by_place)] == [
        call._replace(session="") for call in sorted(kept.calls, key=by_place)
    ]
    assert plain.ended
    assert len(set(plain.agents)) == 2


async def test_texts_stand_in_the_order_of_the_parents_and_offsets_are_ignored() -> None:
    plain = echo()
    pieces: list[str] = []
    async with Session(TextMessages(plain), on_piece=lambda piece: pieces.append(piece.text)):
        one = await prefill("one ")
        two = await prefill("two ", parents=[one])
        answer = await decode("A:", parents=[two, one], offsets=[90, 3], new_offset=500)
        later = await decode("B:", parents=[answer], corrector="recompute-all")
        assert await gen("plain") == "<plain>0"
        await one.delete()
        assert (await decode("C:", parents=[one])).text == "<one C:>0", "nothing was kept to be forgotten"
    assert answer.text == "<two one A:>0"
    assert later.text == "<A:<two one A:>0B:>0"
    assert (answer.offset, two.offset, two.end) == (500, 1, 2)
    assert "".join(pieces[:3]) == answer.text
    assert len({one.id, two.id, answer.id, later.id}) == 4


async def test_texts_refuse_tokens() -> None:
    async with Session(TextMessages(echo())):
        for call in prefill([1]), decode([1]), decode("A:", parents=[message(from_tokens=True)]):
            with pytest.raises(HiveError, match="pass strings to prefill and decode, not tokens"):
                await call


async def test_texts_hand_everything_else_on() -> None:
    inner = echo()
    texts = TextMessages(inner)
    assert texts.answers_now
    assert texts.render([]) == inner.render([])
    assert texts.register_now("a", "s")
    await texts.register("b", "s")
    await texts.end_session("s")
    await texts.aclose()
    assert (inner.agents, inner.ended) == (["a", "b"], ["s"])
    request = Request((), Sampling(), 0, "a", "s", "0", 0, prompt="x")
    assert texts.answer_now(request) == await texts.complete(request)
    assert isinstance(TextMessages("http://127.0.0.1:9")._model, Client)


async def test_a_cancelled_gather_gives_its_decodes_up() -> None:
    model = FunctionModel(
        lambda request: "x", delay=lambda request: 9 if request.prompt == "slow:" else 0.001
    )
    async with Session(model):
        gone = await prefill("gone")
        await gone.delete()
        async with asyncio.timeout(5):
            with pytest.raises(ModelError, match="there is no message"):
                await gather(decode("fast:", parents=[gone]), decode("slow:"))
