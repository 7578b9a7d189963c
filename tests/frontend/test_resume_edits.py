"""Resuming after edits: a run resumes if its requests are the same, or names the request that changed."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections import Counter
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from hive_frontend import (
    BestOfN,
    JournalError,
    ModelError,
    Request,
    Shared,
    Workspace,
    agent,
    gather,
    gen,
    run,
    spawn,
    tool,
)
from hive_frontend.testing import FunctionModel
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.frontend.oracle import define
from tests.frontend.test_oracle import EXAMPLES

ECHO = FunctionModel(lambda request: f"answer to {request.text}")


def agent_of(source: str, **names: Any) -> Any:
    """The agent `program` of a module with this source."""
    found = define(
        dedent(source),
        "program",
        gen=gen,
        tool=tool,
        spawn=spawn,
        agent=agent,
        functools=functools,
        **names,
    )
    return agent(found)


def interrupted(program: Any, file: Path, at: str = "end", *args: Any) -> None:
    """Run a program up to the first call of this name."""

    def answer(request: Request) -> str:
        if request.name == at:
            raise ModelError("down")
        return f"answer to {request.text}"

    with pytest.raises(ModelError, match="down"):
        run(program, *args, model=FunctionModel(answer), seed=1, checkpoint=file)


TEMPLATE = """
    PREFIX, LIMIT, TABLE = "Old", 3, {"a": 1}

    def spelled(text):
        return f"{PREFIX} {text}"

    def clip(text):
        return text[:LIMIT]

    class Tools:
        def __init__(self):
            self.size = LIMIT

        def half(self, number):
            return number // 2

        def cut(self, text):
            return text[: self.half(self.size)]

    def cut(text, by=1):
        '''Cuts.'''
        return clip(text)[by:]

    async def later(table):
        return sorted(table.items())

    async def program():
        tools = Tools()
        first = await gen(spelled("question"), name="one")
        second = await tool(cut, first)
        third = await tool(tools.cut, first)
        fourth = await tool(functools.partial(later, TABLE))
        try:
            await tool(int, first)
        except ValueError as error:
            fifth = str(error)
        await gen("end", name="end")
        return first, second, third, fourth, fifth
"""

EDITS = {
    "a constant of a prompt": ('"Old"', '"New"', "the prompt was 'Old question', and is 'New question'"),
    "a helper of a prompt": ('{text}"', '{text}!"', "the prompt was 'Old question', and is 'Old question!'"),
    "a constant that a helper of a tool reads": ("LIMIT]", "LIMIT + 1]", "the code of clip changed"),
    "a constant of tools": ('"Old", 3', '"Old", 4', "LIMIT was 3, and is 4"),
    "a tool": ("[by:]", "[by + 1:]", "the code of cut changed"),
    "a default of a tool": ("by=1", "by=2", "the defaults of cut was (1,), and is (2,)"),
    "a method that a tool calls": ("number // 2", "number // 3", "the code of Tools.half changed"),
    "data of the module": ('{"a": 1}', '{"a": 2}', "argument 0 was {'a': 1}, and is {'a': 2}"),
    "what a tool is given": ("later, TABLE", "later, {}", "agent 'program' was changed since"),
}


@pytest.mark.parametrize("name", EDITS)
def test_what_changed_is_said(tmp_path: Path, name: str) -> None:
    old, new, said = EDITS[name]
    assert TEMPLATE.count(old) == 1
    interrupted(agent_of(TEMPLATE), tmp_path / "j")
    with pytest.raises(JournalError) as caught:
        run(agent_of(TEMPLATE.replace(old, new)), model=ECHO, checkpoint=tmp_path / "j")
    assert said in str(caught.value)
    assert "give another file to start a new run" in str(caught.value)


@pytest.mark.parametrize(
    "edit", [("'''Cuts.'''", "'''Cuts a text.'''"), ("\n    def cut(", "\n\n    # A tool.\n    def cut(")]
)
def test_layout_and_docstrings_are_no_change(tmp_path: Path, edit: tuple[str, str]) -> None:
    program = agent_of(TEMPLATE)
    interrupted(program, tmp_path / "j")
    expected = run(program, model=ECHO).value
    model = FunctionModel(lambda request: f"answer to {request.text}")
    edited = agent_of(TEMPLATE.replace(*edit, 1))
    assert run(edited, model=model, checkpoint=tmp_path / "j").value == expected
    assert len(model.calls) == 1


def test_another_question_to_a_model_that_had_refused(tmp_path: Path) -> None:
    source = """
        PROMPT = "old"
        async def program():
            try:
                await gen(PROMPT, name="first", temperature=0.5)
            except Exception as error:
                refused = str(error)
            await gen("end", name="end")
            return refused
        """

    def refuse(request: Request) -> str:
        raise ModelError(f"no {request.name}")

    with pytest.raises(ModelError, match="no end"):
        run(agent_of(source), model=FunctionModel(refuse), seed=1, checkpoint=tmp_path / "j")
    with pytest.raises(JournalError, match="the prompt was 'old', and is 'new'"):
        run(agent_of(source.replace('"old"', '"new"')), model=ECHO, checkpoint=tmp_path / "j")
    assert run(agent_of(source), model=ECHO, checkpoint=tmp_path / "j").value == "no first"


def test_settings_are_part_of_the_question(tmp_path: Path) -> None:
    source = """
        HEAT, WHO = 0.5, "judge"
        async def program():
            await gen([("system", "s"), ("user", "q")], temperature=HEAT, agent=WHO)
            await gen("end", name="end")
        """
    interrupted(agent_of(source), tmp_path / "j")
    for old, new, said in (
        ("0.5", "0.7", "temperature was 0.5, and is 0.7"),
        ('"judge"', '"critic"', "the agent was 'judge', and is 'critic'"),
    ):
        with pytest.raises(JournalError, match=said):
            run(agent_of(source.replace(old, new)), model=ECHO, checkpoint=tmp_path / "j")


class Env:
    """A tool with a state."""

    def __init__(self) -> None:
        self.position = 0

    def step(self, by: int) -> int:
        self.position += by
        return self.position


@pytest.mark.parametrize("rerun", [False, True])
def test_a_tool_that_changes_what_the_agent_holds(
    tmp_path: Path, rerun: bool, caplog: pytest.LogCaptureFixture
) -> None:
    @agent
    async def program() -> Any:
        env = Env()
        seen = [await tool(env.step, 5, rerun=rerun)]
        await gen("end", name="end")
        seen.append(await tool(env.step, 1, rerun=rerun))
        return seen, env.position

    with caplog.at_level(logging.WARNING):
        interrupted(program, tmp_path / "j")
    told = [record.getMessage() for record in caplog.records if "a tool changed" in record.getMessage()]
    if rerun:
        assert not told
        assert run(program, model=ECHO, checkpoint=tmp_path / "j").value == ([5, 6], 6)
        return
    (warning,) = told
    assert "changed variable 'env' of program" in warning
    with pytest.raises(JournalError, match=r"changed variable 'env' of program.* rerun=True"):
        run(program, model=ECHO, checkpoint=tmp_path / "j")


def test_so_does_one_that_fails(tmp_path: Path) -> None:
    def take(items: list[int]) -> None:
        raise LookupError(items.pop())

    @agent
    async def program() -> Any:
        items = [1, 2]
        try:
            await tool(take, items)
        except LookupError:
            await gen("end", name="end")
        return items

    interrupted(program, tmp_path / "j")
    with pytest.raises(JournalError, match="changed variable 'items' of program"):
        run(program, model=ECHO, checkpoint=tmp_path / "j")


class Database:
    """A handle to the outside, which counts."""

    def __init__(self) -> None:
        self.asked = 0

    def find(self, text: str) -> int:
        self.asked += 1
        return len(text)


DATABASE = Database()


def test_objects_that_are_not_the_agents_may_change(tmp_path: Path) -> None:
    @agent(supervisor=BestOfN(2, at="way"))
    async def program(counts: Shared[Counter[str]]) -> int:
        await gen("way", name="way")
        found = await tool(DATABASE.find, "abc") + await tool(DATABASE.find, "de")
        await tool(counts.update, ["x"])
        await gen("end", name="end")
        return found + await tool(DATABASE.find, "f")

    interrupted(program, tmp_path / "j", "end", Counter())
    again = run(program, Counter(), model=ECHO, checkpoint=tmp_path / "j")
    assert [found.value for found in again.results] == [6, 6]


# Generated: a program, where it is interrupted, and an edit.

STEPS = {
    "gen": "x = await gen(f'{prefix()} {x}')",
    "sized gen": "x = await gen(x, max_tokens=SIZE)",
    "tool": "x = await tool(join, x, WORD)",
    "method": "x = await tool(box.put, x)",
    "closure": "y = x\nx = await tool(lambda: join(y, str(SIZE)))",
    "helper": "x = await ask(x)",
    "child": "x = await spawn(child, x)",
    "failing tool": "try:\n    x = await tool(refuse, x)\nexcept ValueError as error:\n    x = str(error)",
    "data": "x = await tool(look, TABLE, x)",
    "between": "x = prefix() + x",
}
MODULE = """
WORD, SIZE, TABLE = "word", 3, {"k": "v"}

def prefix():
    return WORD + "1"

def join(*texts):
    return glue().join(texts)[-40:]

def glue():
    return "-"

def refuse(text):
    raise ValueError(WORD + text)

def look(table, text):
    return table["k"] + text

class Box:
    def put(self, text):
        return self.wrap(text)

    def wrap(self, text):
        return "(" + text + ")"

async def ask(text):
    return await gen(WORD + text) + await tool(join, text, text)

@agent
async def child(text):
    return await tool(join, await gen(text), prefix())

async def program():
    x, box = "x", Box()
"""
CHANGES = [
    ('"word"', '"other"'),
    ('SIZE, TABLE = "word", 3', 'SIZE, TABLE = "word", 4'),
    ('"v"', '"w"'),
    ('WORD + "1"', 'WORD + "2"'),
    ('"-"', '"+"'),
    ('"(" + text', '"[" + text'),
    ("[-40:]", "[-30:]"),
    ('table["k"] + text', 'text + table["k"]'),
    ("WORD + text)", "text + WORD)"),
    ("gen(WORD + text)", "gen(text + WORD)"),
    ("gen(text), prefix()", "gen(text), 'p'"),
]


@settings(
    max_examples=max(40, EXAMPLES // 10),
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(
    st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=6),
    st.integers(0, 8),
    st.sampled_from([None, *CHANGES]),
)
def test_generated_programs_resumed_after_edits(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], stop: int, change: tuple[str, str] | None
) -> None:
    body = "\n".join(STEPS[step] for step in steps)
    source = MODULE + "".join(f"    {line}\n" for line in [*body.splitlines(), "return x"])
    file = tmp_path_factory.mktemp("resume") / "j"
    program, edited = agent_of(source), agent_of(source)
    if change is not None:
        assert change[0] in source
        edited = agent_of(source.replace(*change))
    calls = 0

    def answer(request: Request) -> str:
        nonlocal calls
        calls += 1
        if calls > stop:
            raise ModelError("down")
        return f"a{len(request.text) * 7 + request.sampling.max_tokens}{request.text[-3:]}"

    with contextlib.suppress(ModelError):
        run(program, model=FunctionModel(answer), seed=1, checkpoint=file)
    stop = 1000
    expected = run(edited, model=FunctionModel(answer), seed=1).value
    try:
        resumed = run(edited, model=FunctionModel(answer), checkpoint=file).value
    except JournalError:
        assert change is not None, "an unchanged program resumes"
    else:
        assert resumed == expected


@pytest.mark.parametrize("together", [False, True])
def test_a_tool_that_is_made_again_fails_again(tmp_path: Path, together: bool) -> None:
    def write(workspace: Workspace) -> None:
        workspace.write("log", "begun")
        raise LookupError("no such file")

    @agent
    async def program() -> str:
        workspace = Workspace()
        try:
            await (gather(tool(write, workspace), gen("q")) if together else tool(write, workspace))
        except LookupError as error:
            await gen("end", name="end")
            return f"{error.args[0]}: {workspace.read('log')}"
        return "no"

    interrupted(program, tmp_path / "j")
    assert run(program, model=ECHO, checkpoint=tmp_path / "j").value == "no such file: begun"
    assert run(program, replay=tmp_path / "j").value == "no such file: begun"
