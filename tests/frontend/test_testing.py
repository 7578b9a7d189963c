"""The models that stand in for a server in tests."""

from __future__ import annotations

import asyncio

import pytest
from hive_frontend.client import CallTimeout, Completion, Request, Sampling
from hive_frontend.client.messages import Message
from hive_frontend.client.structured import InvalidAnswer
from hive_frontend.testing import FunctionModel, RealCallForbidden, ScriptedModel, forbid_real_calls

import hive.testing


def ask(text: str = "q", **fields: object) -> Request:
    given = {
        "seed": 7,
        "agent": "judge",
        "session": "s",
        "state": "0",
        "sample": 0,
        "sampling": Sampling(),
        **fields,
    }
    return Request(messages=(Message("user", text),), **given)  # type: ignore[arg-type]


async def test_answers_that_need_no_waiting() -> None:
    model = ScriptedModel(["one two", Completion("three", 5, 6, "length")])
    assert model.answer_now(ask(sample=1)) == Completion("one two", 2, 0, "stop")
    assert await model.complete(ask(sample=2)) == Completion("three", 5, 6, "length")
    assert [(request.seed, request.sample) for request in model.calls] == [(7, 1), (7, 2)]


async def test_answers_that_take_time() -> None:
    model = ScriptedModel(["one"], delay=lambda request: 0.01)
    assert model.answer_now(ask()) is None
    assert model.calls == []
    assert (await model.complete(ask())).text == "one"
    with pytest.raises(CallTimeout, match=r"no answer within 0.01 s .* agent 'judge'"):
        await ScriptedModel(["one"], delay=lambda request: 9).complete(ask(timeout_s=0.01))


async def test_functions() -> None:
    assert FunctionModel(lambda request: request.text * 2).answer_now(ask("ab")) == Completion(
        "abab", 1, 0, "stop"
    )

    async def slowly(request: Request) -> str:
        await asyncio.sleep(0)
        return request.agent

    class Slowly:
        async def __call__(self, request: Request) -> Completion:
            return Completion(request.state, 1)

    for function, answer in (slowly, "judge"), (Slowly(), "0"):
        model = FunctionModel(function)
        assert model.answer_now(ask()) is None
        assert (await model.complete(ask())).text == answer
        assert len(model.calls) == 1
    with pytest.raises(TypeError, match=r"returned int, .* declare it with async def"):
        await FunctionModel(lambda request: 3).complete(ask())  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    ("sampling", "good", "bad"),
    [(Sampling(choices=("yes", "no")), "no", "Sure! yes"), (Sampling(regex="[0-9]+"), "42", "42 apples")],
)
async def test_answers_that_the_grammar_does_not_allow_are_refused(
    sampling: Sampling, good: str, bad: str
) -> None:
    request = ask(sampling=sampling)
    for delay in None, lambda request: 0.0:
        assert (await FunctionModel(lambda request: good, delay=delay).complete(request)).text == good
        with pytest.raises(InvalidAnswer, match=f"'{bad}'.*agent 'judge'") as refused:
            await FunctionModel(lambda request: bad, delay=delay).complete(request)
        assert refused.value.text == bad
        unchecked = ScriptedModel([bad], delay=delay, grammars=False)
        assert (await unchecked.complete(request)).text == bad


async def test_a_timeout_of_the_function_is_its_own() -> None:
    async def broken(request: Request) -> str:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        await FunctionModel(broken).complete(ask(timeout_s=5.0))


@pytest.mark.parametrize("text", ["one", " one two\n three ", "", " \n", "a" * 3])
async def test_streams_come_word_by_word(text: str) -> None:
    pieces: list[str] = []
    answer = await ScriptedModel([text]).complete(ask(), pieces.append)
    assert "".join(pieces) == answer.text == text
    assert len(pieces) == max(len(text.split()), bool(text))


def test_dialogues_are_shown_without_a_template() -> None:
    messages = [Message("system", "Be brief."), Message("user", "Hi.")]
    assert ScriptedModel([]).render(messages) == "[system]\nBe brief.\n\n[user]\nHi.\n\n[assistant]\n"


def test_forbidding_real_calls_nests() -> None:
    client = hive.testing.ScriptedModel(["one"])
    with forbid_real_calls(), forbid_real_calls():
        assert client.answer_now(ask()) is not None
    assert hive.testing.RealCallForbidden is RealCallForbidden
    assert hive.testing.forbid_real_calls is forbid_real_calls
