"""Descriptions of model calls: what they hold, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest
from hive_frontend import Dialogue, Message, Sampling, decode, gather, gen
from hive_frontend.testing import ScriptedModel


def test_prompts_of_all_kinds() -> None:
    assert gen("q").messages == (Message("user", "q"),)
    assert gen([{"role": "system", "content": "s"}, ("user", "q")]).messages == (
        Message("system", "s"),
        Message("user", "q"),
    )
    talk = Dialogue(system="s").user("q")
    call = gen(talk)
    talk.user("later")
    assert call.messages == (Message("system", "s"), Message("user", "q"))
    raw = gen("once upon", raw=True)
    assert (raw.messages, raw.prompt) == ((), "once upon")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompt": 3}, "a prompt is a string, a Dialogue or a list of messages, not int"),
        ({"prompt": []}, "the prompt has no messages"),
        ({"prompt": ["q"]}, "message 0 of the prompt is 'q'"),
        ({"prompt": [("boss", "q")]}, "needs a role, one of system, user, assistant"),
        ({"prompt": [("user", 1)]}, "a string as content"),
        ({"prompt": [("user", "q")], "raw": True}, "with raw=True the prompt must be a string"),
        ({"prompt": "q", "max_tokens": 0}, "max_tokens must be an integer of at least 1"),
        ({"prompt": "q", "max_tokens": True}, "max_tokens must be an integer of at least 1"),
        ({"prompt": "q", "temperature": -1}, "temperature must be at least 0"),
        ({"prompt": "q", "top_p": 0}, "top_p must be above 0"),
        ({"prompt": "q", "top_k": 0}, "top_k must be at least 1"),
        ({"prompt": "q", "sample": -1}, "sample must be from 0"),
        ({"prompt": "q", "agent": "two words"}, "agent must be 1 to 128 characters"),
        ({"prompt": "q", "choices": []}, "choices must be a list of non-empty strings"),
        ({"prompt": "q", "choices": "abc"}, "choices must be a list of non-empty strings"),
        ({"prompt": "q", "choices": ["a"], "regex": "b"}, "regex and choices exclude each other"),
        ({"prompt": "q", "json_schema": "{"}, "json_schema must be a JSON schema"),
    ],
)
def test_bad_calls(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        gen(**arguments)


def test_choices_become_a_grammar() -> None:
    assert gen("q", choices=["yes", "no (really)"]).sampling.grammar == r"(yes|no \(really\))"
    assert gen("q", regex="[0-9]+").sampling.grammar == "[0-9]+"
    assert gen("q").sampling.grammar is None
    assert gen("q", json_schema={"type": "object"}).sampling.json_schema == '{"type": "object"}'
    assert gen("q", stop="\n").sampling.stop == ("\n",)


def test_settings_keep_their_names() -> None:
    for sampling in (
        gen("q", max_tokens=7, temperature=0.5, top_p=0.9, top_k=3, stop="x", regex="a+").sampling,
        decode("A:", max_tokens=7, temperature=0.5, top_p=0.9, top_k=3, stop="x", regex="a+").sampling,
    ):
        assert sampling == Sampling(
            max_tokens=7, temperature=0.5, top_p=0.9, top_k=3, stop=("x",), regex="a+"
        )


@pytest.mark.parametrize("name", ["temperature", "top_p", "top_k"])
def test_settings_that_are_no_numbers(name: str) -> None:
    arguments: dict[str, Any] = {name: "hot"}
    with pytest.raises(TypeError, match=f"{name} must be a number, such as {name}=1, not 'hot'"):
        gen("q", **arguments)


def test_bad_gathers() -> None:
    with pytest.raises(TypeError, match="argument 0 is a list; write gather"):
        gather([gen("q")])  # type: ignore[arg-type]
    talk = Dialogue().user("q")
    with pytest.raises(ValueError, match="continue the same dialogue"):
        gather(gen(talk), gen(talk))


def test_dialogues() -> None:
    talk = Dialogue().user("q")
    other = talk.copy().assistant("a")
    assert talk != other
    assert len(other) == 2
    assert repr(talk) == "Dialogue([Message(role='user', content='q')])"
    with pytest.raises(TypeError, match="a message of a dialogue is a string, not int"):
        talk.user(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        hash(talk)


async def test_scripts() -> None:
    from hive_frontend import Session
    from hive_frontend.testing import ScriptExhausted

    async with Session(ScriptedModel(["a", "b c"])):
        first, second = await gen("q"), await gen("r")
        assert (first, second, second.tokens_generated, second.finish_reason) == ("a", "b c", 2, "stop")
        with pytest.raises(ScriptExhausted, match="the script has 2 answers, and all were used before the"):
            await gen("s")
    by_name = ScriptedModel({"ask": ["1"], "judge": lambda request: request.text, "*": "else"})
    async with Session(by_name):
        assert await gen("q", name="ask") == "1"
        assert await gen("q", name="other", agent="judge") == "q"
        assert await gen("q") == "else"
        with pytest.raises(ScriptExhausted, match=r"entry 'ask' of the script has 1 answers"):
            await gen("q", name="ask")
    async with Session(ScriptedModel({"ask": "1"})):
        with pytest.raises(
            ScriptExhausted, match=r"no answer for the call of agent 'main' in state .* 'ask'"
        ):
            await gen("q", name="other")
