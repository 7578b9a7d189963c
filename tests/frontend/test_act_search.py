"""Calls of tools as states: in every search, in journals and on the page of the tree."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from hive_frontend import (
    MCTS,
    BestOfN,
    JournalError,
    ModelTool,
    Once,
    Request,
    Shared,
    Supervisor,
    TreeOfThoughts,
    Workspace,
    act,
    agent,
    render_tree,
    run,
    score,
    stream,
)
from hive_frontend.testing import Answer, FunctionModel, ScriptedModel, call

from tests.frontend.test_act import FORMATS, Format, assistant, weather


def walk(request: Request) -> Answer:
    """Walk to the left in the first branch of a state, to the right in the others, for two steps."""
    results = [message for message in request.messages if message.role == "tool"]
    if len(results) == 2:
        return f"at {results[-1].content}"
    return call("step", by=-1 if request.sample == 0 else request.sample)


@agent
async def walker() -> str:
    place = [0]

    def step(by: int) -> int:
        """Take a step."""
        place[0] += by
        return place[0]

    found = await act("Walk.", tools=[ModelTool(step, rerun=True)])
    score(place[0])
    return found


@pytest.mark.parametrize(
    ("supervisor", "ends"),
    [
        (Once(), ["at -2"]),
        (BestOfN(3), ["at -2", "at 0", "at 1"]),
        (
            TreeOfThoughts(branch_at="act", branching=2, breadth=4, limit=None),
            ["at -2", "at 0", "at 2"],
        ),
    ],
)
def test_every_branch_has_its_own_calls(supervisor: Supervisor, ends: list[str]) -> None:
    result = run(walker, model=FunctionModel(walk), supervisor=supervisor, seed=1)
    assert sorted({each.value for each in result.results}) == ends
    best = result.best
    assert best is not None
    assert f"at {best.score:g}" == best.value


def test_tools_share_what_the_agent_shares() -> None:
    def note(everyone: list[str], own: list[str], text: str) -> int:
        everyone.append(text)
        own.append(text)
        return len(own)

    @agent(supervisor=BestOfN(3, at="act"))
    async def program(everyone: Shared[list[str]]) -> list[str]:
        own: list[str] = []
        await act("q", tools=[functools.partial(note, everyone, own)])
        return own

    def noting(request: Request) -> Answer:
        return "Noted." if len(request.messages) > 1 else call("note", text=str(request.sample))

    together: list[str] = []
    result = run(program, together, model=FunctionModel(noting))
    assert sorted(map(str, (each.value for each in result.results))) == ["['0']", "['1']", "['2']"]
    assert sorted(together) == ["0", "1", "2"]


def test_a_tree_search_branches_at_every_answer() -> None:
    result = run(
        walker, model=FunctionModel(walk), supervisor=MCTS(branch_at="act", branching=2, simulations=12)
    )
    assert max(int(each.value.removeprefix("at ")) for each in result.results) == 2
    assert {node.name for node in result.tree.nodes} == {"act", "tools", "return"}
    assert walker.graph().state_names == ("act", "tools")


def test_the_tree_shows_calls_and_results() -> None:
    result = run(
        assistant, "q", model=ScriptedModel([[call("weather", city="Rome"), call("add", a=1)], "Warm."])
    )
    waiting, then = result.tree.nodes[1], result.tree.nodes[2]
    assert waiting.replies == ["weather(city='Rome')\nadd(a=1)"]
    assert waiting.prompts == ["weather(city='Rome')", "add(a=1)"]
    assert then.results == ["Rome: 21 degrees", "2"]
    page = render_tree(result.tree)
    for shown in (
        "weather(city=&#x27;Rome&#x27;)",
        "add(a=1)",
        '<span class="text tool">Rome: 21 degrees</span>',
    ):
        assert shown in page


async def test_streams_have_the_text_of_the_answers() -> None:
    for tool_format in FORMATS:
        script: list[Answer] = [call("weather", city="Rome"), "Warm and dry."]
        async with stream(assistant, "q", tool_format, model=ScriptedModel(script)) as live:
            text = [piece.text async for piece in live]
        assert "".join(text).endswith("Warm and dry.")


# Journals

looked: list[str] = []


def look(what: str) -> str:
    looked.append(what)
    if what == "nothing":
        raise LookupError(what)
    return f"seen {what}"


@agent(supervisor=TreeOfThoughts(branch_at="act", branching=2, breadth=2, limit=None))
async def looker(tool_format: Format) -> str:
    return await act("Look.", tools=[look], tool_format=tool_format)


def looking(request: Request) -> Answer:
    turns = sum(message.role == "assistant" for message in request.messages)
    what = ["a", "nothing", "b"][(turns + request.sample) % 3]
    return "Done." if turns == 2 else [call("look", what=what), call("look", what=f"{what}!")]


@pytest.mark.parametrize("tool_format", FORMATS)
@pytest.mark.parametrize("calls", range(1, 8))
def test_an_interrupted_run_goes_on_within_the_loop(tmp_path: Path, calls: int, tool_format: Format) -> None:
    class Killed(Exception):
        pass

    left = [calls]

    def mortal(request: Request) -> Answer:
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        return looking(request)

    looked.clear()
    whole = run(looker, tool_format, model=FunctionModel(looking), seed=1)
    expected = sorted(looked)
    looked.clear()
    with pytest.raises(Killed):
        run(looker, tool_format, model=FunctionModel(mortal), seed=1, checkpoint=tmp_path / "j")
    before = len(looked)
    model = FunctionModel(looking)
    resumed = run(looker, tool_format, model=model, checkpoint=tmp_path / "j")
    assert resumed.tree == whole.tree
    assert before == 0 or len(looked) == len(expected)
    assert sorted(looked) == expected
    assert len(model.calls) == whole.totals.requests - calls
    # The whole run is also a recording.
    looked.clear()
    assert run(looker, tool_format, replay=tmp_path / "j").tree == whole.tree
    assert not looked


named = {"weather": "weather"}


@agent
async def renaming() -> str:
    return await act("q", tools=[ModelTool(weather, name=named["weather"])])


def test_a_resumed_run_has_the_same_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(renaming, model=ScriptedModel(["Warm."]), checkpoint=tmp_path / "j")
    monkeypatch.setitem(named, "weather", "climate")
    with pytest.raises(JournalError, match=r"the tools was .*name='weather'.* and is .*name='climate'"):
        run(renaming, model=ScriptedModel(["Warm."]), checkpoint=tmp_path / "j")


def test_tools_of_a_workspace_are_repeated(tmp_path: Path) -> None:
    @agent
    async def program(closure: bool) -> str:
        files = Workspace()

        def note(text: str) -> None:
            """Write a note."""
            files.write("note", text)

        def read() -> str:
            """Read the note."""
            return files.read("note")

        if closure:
            return await act("q", tools=[note, read])
        return await act("q", tools=[ModelTool(files.write, name="note"), ModelTool(files.read, name="read")])

    for closure in (True, False):
        writing = call("note", text="x") if closure else call("note", name="note", text="x")
        reading = call("read") if closure else call("read", name="note")

        def stop(request: Request) -> Answer:
            raise KeyError

        with pytest.raises(KeyError):
            run(program, closure, model=FunctionModel(stop), checkpoint=tmp_path / f"{closure}", seed=1)
        with pytest.raises(Exception, match="the script has 1 answers"):
            run(program, closure, model=ScriptedModel([writing]), checkpoint=tmp_path / f"{closure}")
        result = run(
            program, closure, model=ScriptedModel([reading, "Read."]), checkpoint=tmp_path / f"{closure}"
        )
        assert result.tree.nodes[-2].results == ["x"]
