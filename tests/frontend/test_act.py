"""Models that call tools: the loop, its limits and errors, and every call as a state of a search."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any, Literal

import pytest
from hive_frontend import (
    BestOfN,
    Client,
    Completion,
    Dialogue,
    InvalidAnswer,
    Message,
    ModelTool,
    Request,
    Session,
    StepsExceeded,
    TextMessages,
    Workspace,
    act,
    agent,
    arun,
    fail,
    gen,
    run,
    tool,
)
from hive_frontend.client.contract import OnText
from hive_frontend.client.tool_text import calls_as_text
from hive_frontend.client.tools import Tools
from hive_frontend.testing import Answer, FunctionModel, ScriptedModel, call
from pydantic import BaseModel

FORMATS = ("native", "grammar")
Format = Literal["native", "grammar"]


def weather(city: str) -> str:
    """The weather in a city."""
    return f"{city}: 21 degrees"


async def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


def broken(why: str) -> str:
    raise LookupError(why)


def asked(model: FunctionModel, number: int) -> list[tuple[str, str]]:
    """The turns of a call, as a model sees them."""
    return [(role, content) for role, content in model.calls[number].messages]


def offered(request: Request) -> Tools:
    assert request.tools is not None
    return request.tools


@agent
async def assistant(question: str, tool_format: Format = "native", schema: Any = None) -> Any:
    return await act(question, tools=[weather, add, broken], tool_format=tool_format, schema=schema)


@pytest.mark.parametrize("tool_format", FORMATS)
async def test_the_model_calls_tools_until_it_answers(tool_format: Format) -> None:
    script: list[Answer] = [[call("weather", city="Rome"), call("add", a=3)], "Warm."]
    compiled, native = ScriptedModel(script), ScriptedModel(script)
    result = await arun(assistant, "How is Rome?", tool_format, model=compiled, seed=1)
    async with Session(native, seed=1):
        assert await assistant("How is Rome?", tool_format) == result.value == "Warm."
    assert [request._replace(session="") for request in native.calls] == [
        request._replace(session="") for request in compiled.calls
    ]
    assert result.totals.requests == 2
    if tool_format == "native":
        assert asked(compiled, 1) == [
            ("user", "How is Rome?"),
            ("assistant", ""),
            ("tool", "Rome: 21 degrees"),
            ("tool", "4"),
        ]
    else:
        assert asked(compiled, 1)[1:] == [
            ("user", "How is Rome?"),
            (
                "assistant",
                '{"calls": [{"name": "weather", "arguments": {"city": "Rome"}}, '
                '{"name": "add", "arguments": {"a": 3}}]}',
            ),
            ("user", "Result of weather: Rome: 21 degrees\nResult of add: 4"),
        ]


def test_a_dialogue_takes_all_turns() -> None:
    @agent
    async def program() -> tuple[str, Dialogue]:
        talk = Dialogue(system="Be brief.").user("How is Rome?")
        await act(talk, tools=[weather])
        # A call without tools continues the same dialogue.
        return await gen(talk.user("Sure?")), talk

    model = ScriptedModel([call("weather", city="Rome"), "Warm.", "Yes."])
    found = run(program, model=model).value
    assert found is not None
    answer, talk = found
    assert answer == "Yes."
    assert [message.role for message in talk] == [
        *("system", "user", "assistant", "tool", "assistant", "user", "assistant")
    ]
    assert talk.messages[2].tool_calls[0].shown == "weather(city='Rome')"
    assert talk.messages[3].tool_call_id == talk.messages[2].tool_calls[0].id
    assert talk.messages[2] != Message("assistant", "")
    assert Dialogue(talk.messages) == talk
    assert "weather(city='Rome')" in talk.render(model)


def test_what_goes_wrong_is_told_to_the_model(caplog: pytest.LogCaptureFixture) -> None:
    calls = [
        call("broken", why="no wire"),
        call("weather", town="Rome"),
        call("add", a="x"),
        call("subtract", a=1),
    ]
    result = run(assistant, "q", model=ScriptedModel([calls, "Sorry."]))
    assert result.value == "Sorry."
    assert result.tree.nodes[2].results == [
        "Error: LookupError: no wire",
        "Error: invalid arguments: city: Field required; town: Extra inputs are not permitted",
        "Error: invalid arguments: a: Input should be a valid integer, unable to parse string as an integer",
        "Error: there is no tool 'subtract'; the tools are weather, add, broken",
    ]


def test_a_slow_tool_and_one_that_gives_up() -> None:
    def stuck() -> None:
        time.sleep(1)

    def hopeless() -> None:
        fail("hopeless")

    @agent
    async def program() -> str:
        return await act("q", tools=[ModelTool(stuck, timeout=0.01), hopeless])

    result = run(program, model=ScriptedModel([call("stuck"), "Late."]))
    assert result.tree.nodes[2].results == [
        "Error: ToolTimeout: tool "
        "test_a_slow_tool_and_one_that_gives_up.<locals>.stuck took longer than 0.01 seconds"
    ]
    result = run(program, model=ScriptedModel([call("hopeless")]))
    assert [node.failure for node in result.tree.nodes if node.status == "dead"] == ["hopeless"]


def test_calls_of_one_answer_run_at_once() -> None:
    together = threading.Barrier(2, timeout=5)

    def meet(name: str) -> str:
        together.wait()
        return name

    @agent
    async def program() -> str:
        return await act("q", tools=[meet])

    result = run(program, model=ScriptedModel([[call("meet", name="a"), call("meet", name="b")], "Met."]))
    assert result.tree.nodes[2].results == ["a", "b"]


def test_steps_are_limited() -> None:
    @agent
    async def program() -> str:
        return await act("q", tools=[weather], max_steps=3)

    model = FunctionModel(lambda request: call("weather", city="Rome"))
    with pytest.raises(StepsExceeded, match=r"no final answer in 3 steps \(max_steps\)"):
        run(program, model=model)
    assert len(model.calls) == 3

    def luck(request: Request) -> Answer:
        return "Done." if request.state.startswith("0.1") else call("weather", city="Rome")

    found = run(program, model=FunctionModel(luck), supervisor=BestOfN(2), on_error="drop")
    assert [each.value for each in found.results] == ["Done."]


@pytest.mark.parametrize(
    ("choice", "schema", "choices"),
    [
        ("auto", None, ["auto", "auto"]),
        ("required", None, ["required", "auto"]),
        ("weather", None, ["weather", "auto"]),
        ("none", None, ["none", "none"]),
        ("auto", int, ["required", "required"]),
        ("required", int, ["required", "required"]),
        ("weather", int, ["weather", "required"]),
        ("none", int, ["final_answer", "final_answer"]),
    ],
)
def test_tools_are_forced_in_the_first_step_and_forbidden_in_all(
    choice: str, schema: Any, choices: list[str]
) -> None:
    @agent
    async def program() -> Any:
        return await act("q", tools=[weather], tool_choice=choice, schema=schema)

    model = ScriptedModel([call("weather", city="Rome"), call("final_answer", answer=3) if schema else "3"])
    assert str(run(program, model=model).value) == "3"
    assert [offered(request).choice for request in model.calls] == choices
    names = [[each.name for each in offered(request).schemas] for request in model.calls]
    final = ["weather", *(["final_answer"] if schema else [])]
    assert names == [["weather"] if choice == "required" else final, final]


def test_a_model_that_does_not_call_what_it_must_is_reminded() -> None:
    @agent
    async def program() -> str:
        return await act("q", tools=[weather], tool_choice="weather")

    model = ScriptedModel(["[{", call("weather", city="Rome"), "Warm."])
    assert run(program, model=model).value == "Warm."
    assert [offered(request).choice for request in model.calls] == ["weather", "weather", "auto"]
    assert model.calls[1].messages[1:] == (Message("assistant", "[{"), Message("user", "Call a tool."))


class City(BaseModel):
    name: str
    degrees: int


@pytest.mark.parametrize("tool_format", FORMATS)
def test_answers_have_a_type(tool_format: Format) -> None:
    right = {"name": "Rome", "degrees": 21}
    answers: list[Answer] = [
        call("final_answer", answer={"name": "Rome"}),
        "Rome is warm.",
        [call("final_answer", answer=right), call("weather", city="Rome")],
    ]
    model = ScriptedModel(answers)
    assert run(assistant, "q", tool_format, City, model=model).value == City(name="Rome", degrees=21)
    told = [message.content for message in model.calls[-1].messages]
    assert told[-1] == "Call final_answer with your answer."
    assert "Error: invalid arguments: answer.degrees: Field required" in told[-3]
    # A model that ignores the tool may write the value.
    model = ScriptedModel(['{"name": "Rome", "degrees": 21}'], grammars=False)
    assert run(assistant, "q", "native", City, model=model).value == City(**right)


def test_an_answer_that_is_cut_off_is_no_answer() -> None:
    model = ScriptedModel(['{"calls": [{"name": "wea'])
    with pytest.raises(InvalidAnswer, match="raise max_tokens, or bound the arguments of the tools"):
        run(assistant, "q", "grammar", model=model)
    # A server that ignores grammars still answers.
    assert run(assistant, "q", "grammar", model=ScriptedModel(["Warm."])).value == "Warm."
    assert run(assistant, "q", "grammar", model=ScriptedModel(['{"answer": "Warm."}'])).value == "Warm."


def test_a_program_may_have_its_own_loop() -> None:
    @agent
    async def program() -> str:
        talk = Dialogue().user("How is Rome?")
        reply = await gen(talk, tools=[weather], tool_choice="required")
        for each in reply.tool_calls:
            talk.tool(await tool(weather, "Rome"), each)
        return await gen(talk, tools=[weather], tool_choice="none")

    model = ScriptedModel([call("weather", city="Rome"), "Warm."])
    assert run(program, model=model).value == "Warm."
    assert [offered(request).choice for request in model.calls] == ["required", "none"]


def test_a_client_of_ones_own_need_not_know_tools() -> None:
    seen: list[Request] = []

    class Plain(Client):
        async def complete(self, request: Request, on_text: OnText | None = None) -> Completion:
            seen.append(request)
            results = [each.content for each in request.messages if each.content.startswith("Result of")]
            return Completion(json.dumps({"answer": results[0]}) if results else calls_as_text([first]), 1)

    first = call("weather", city="Rome")
    assert run(assistant, "q", "auto", model=Plain()).value == "Result of weather: Rome: 21 degrees"
    assert all(request.tools is None and request.sampling.json_schema for request in seen)
    # Also within other clients.
    assert run(assistant, "q", "auto", model=TextMessages(Plain())).value is not None


async def test_a_person_may_be_a_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    hints: list[Any] = []
    monkeypatch.setattr(FunctionModel, "hint", lambda model, hint: hints.append(hint))

    async def ask_person(question: str) -> str:
        await asyncio.sleep(0.2)
        return "yes"

    @agent
    async def program() -> str:
        return await act("q", tools=[ModelTool(ask_person, waits_for="human")])

    await arun(program, model=ScriptedModel([call("ask_person", question="May I?"), "Done."]))
    assert [hint["expects"]["event"] for hint in hints if "expects" in hint] == ["human"]


def test_without_tools_it_is_an_ordinary_call() -> None:
    @agent
    async def program() -> str:
        return await act("q", tools=[])

    model = ScriptedModel(["Warm."])
    assert run(program, model=model).value == "Warm."
    assert model.calls[0].tools is None


def test_agents_are_tools() -> None:
    @agent
    async def expert(question: str) -> str:
        """Ask an expert."""
        return await gen(question)

    @agent
    async def program() -> str:
        return await act("q", tools=[expert])

    model = ScriptedModel({"expert": "42", "program": [call("expert", question="Why?"), "It is 42."]})
    result = run(program, model=model)
    assert (result.value, model.calls[1].text) == ("It is 42.", "Why?")
    assert result.totals.agents.keys() == {"expert", "program"}


# Errors of programs


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tools": weather}, "tools must be a list of functions, not <function weather"),
        ({"tools": ["weather"]}, r"tools must be functions or ModelTool\(function, ...\), not 'weather'"),
        ({"tools": [weather, weather]}, "several tools are called 'weather': name one with ModelTool"),
        ({"tools": [lambda x: x]}, "'<lambda>' cannot be the name of a tool: use 1 to 64 letters"),
        ({"tools": [weather], "max_steps": 0}, "max_steps must be an integer of at least 1, not 0"),
        ({"tools": [weather], "tool_choice": "wether"}, r"the name of a tool \(weather\), not 'wether'"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice='required' needs at least one tool"),
        ({"tools": [weather], "tool_format": "xml"}, "tool_format must be one of auto, native, grammar"),
        ({"tools": [weather], "schema": object()}, "cannot write an argument of every type"),
        ({"tools": [weather], "regex": "x"}, "tools exclude raw, regex, json_schema, choices and schema"),
    ],
)
def test_bad_calls_say_what_is_wrong(arguments: dict[str, Any], message: str) -> None:
    @agent
    async def program() -> Any:
        return await act("q", **arguments)

    with pytest.raises((TypeError, ValueError), match=message):
        run(program, model=ScriptedModel([]))


def test_bad_tools_say_what_is_wrong() -> None:
    def stars(*words: str) -> None: ...

    def spaces(workspace: Workspace) -> None: ...

    with pytest.raises(TypeError, match=r"a model gives arguments by name, and cannot give \*words; "):
        ModelTool(stars)
    with pytest.raises(TypeError, match=r"bind the parameter, as in functools.partial\(spaces, ...\)"):
        ModelTool(spaces)
    with pytest.raises(ValueError, match="timeout must be a positive number"):
        ModelTool(weather, timeout=0)
    with pytest.raises(ValueError, match="waits_for must be"):
        ModelTool(weather, waits_for="rain")  # type: ignore[arg-type]


async def test_a_cancelled_branch_cancels_its_tools() -> None:
    cancelled = asyncio.Event()
    started = asyncio.Event()

    async def wait() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    @agent
    async def program() -> str:
        return await act("q", tools=[wait])

    running = asyncio.create_task(arun(program, model=ScriptedModel([call("wait")])))
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert cancelled.is_set()
