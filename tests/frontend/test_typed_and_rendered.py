"""Typed answers and rendered prompts, as agent code uses them."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from hive_frontend import (
    Dialogue,
    InvalidAnswer,
    NoModelError,
    Session,
    TreeOfThoughts,
    agent,
    gather,
    gen,
    run,
)
from hive_frontend.testing import ScriptedModel
from pydantic import BaseModel


class Verdict(BaseModel):
    sure: bool
    reasons: list[str] = []


def test_answers_are_instances_and_dialogues_keep_their_text() -> None:
    @agent(supervisor=TreeOfThoughts(branch_at="judge", branching=2, limit=None))
    async def program() -> Any:
        talk = Dialogue().user("Sure?")
        verdict = await gen(talk, schema=Verdict, name="judge")
        verdict.reasons.append("branch")
        many, word = await gather(gen("list", schema=list[int]), gen("word", schema=Literal["a", "b"]))
        return verdict.sure, verdict.reasons, talk.messages[-1].content, sum(many), word

    model = ScriptedModel(
        lambda request: {"list": "[1, 2]", "word": '"b"'}.get(
            request.text, '{"sure": %s, "reasons": []}' % ("true" if request.sample else "false")
        )
    )
    values = [found.value for found in run(program, model=model).results]
    assert values == [
        (False, ["branch"], '{"sure": false, "reasons": []}', 3, "b"),
        (True, ["branch"], '{"sure": true, "reasons": []}', 3, "b"),
    ]
    schema = model.calls[0].sampling.json_schema
    assert schema is not None
    assert '"sure"' in schema


def test_answers_that_are_none_can_be_caught() -> None:
    @agent
    async def program() -> str:
        try:
            await gen("q", schema=Verdict)
        except InvalidAnswer as error:
            return error.text
        return "no"

    assert run(program, model=ScriptedModel({"*": "gibberish"})).value == "gibberish"


def test_grammars_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="exclude each other"):
        gen("q", schema=Verdict, regex="a")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="exclude each other"):
        gen("q", schema=Verdict, json_schema={})  # type: ignore[call-overload]


async def test_a_dialogue_shows_its_prompt() -> None:
    talk = Dialogue(system="Be brief.").user("Hello")
    model = ScriptedModel({"*": "hi"})
    shown = talk.render(model)
    assert "Be brief." in shown
    assert "Hello" in shown

    @agent
    async def program() -> tuple[str, str]:
        mine = talk.copy()
        before = mine.render()
        await gen(mine)
        return before, mine.render()

    before, after = run(program, model=model).value or ("", "")
    assert before == shown
    assert "hi" in after
    async with Session(model):
        assert talk.render() == shown
        assert await program() == (before, after)
    with pytest.raises(NoModelError, match="no model to render for"):
        talk.render()
