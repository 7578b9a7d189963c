"""What models are told of tools, and the text in which models without a format of their own call them."""

from __future__ import annotations

import copy
import functools
import json
import pickle
from typing import Annotated, Any, Literal

import pytest
from hive_frontend import Completion, Message, ModelTool, Request, Sampling, ToolCall
from hive_frontend.client.messages import ToolMessage
from hive_frontend.client.tool_text import as_text, calls_as_text, read_calls, without_tools
from hive_frontend.client.tools import BadArguments, Tools, model_tools
from hive_frontend.operations import fork
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field


class City(BaseModel):
    name: str
    near: list[City] = Field(default=[], max_length=2)


def forecast(
    city: City,
    days: Annotated[int, Field(description="how many", le=9)] = 3,
    *,
    schema: Literal["long", "short"] = "short",
    json: Any = None,
) -> str:
    """The weather of the next days.

    Args:
        city: where
    """
    return f"{city.name} {days} {schema} {json}"


class Env:
    """A place."""

    def step(self, by: int) -> int:
        """Take a step."""
        return by

    def __call__(self, question: str) -> str:
        return question


def test_a_schema_comes_from_signature_and_docstring() -> None:
    schema = ModelTool(forecast).schema
    assert (schema.name, schema.description) == (
        "forecast",
        "The weather of the next days.\n\nArgs:\n    city: where",
    )
    parameters = json.loads(schema.parameters)
    assert parameters["properties"] == {
        "city": {"$ref": "#/$defs/City"},
        "days": {"default": 3, "description": "how many", "maximum": 9, "type": "integer"},
        "schema": {"default": "short", "enum": ["long", "short"], "type": "string"},
        "json": {"default": None},
    }
    assert (parameters["required"], parameters["additionalProperties"]) == (["city"], False)


def test_bound_parameters_are_not_shown() -> None:
    bound = ModelTool(functools.partial(forecast, City(name="Rome"), json=1), name="rome")
    assert list(json.loads(bound.schema.parameters)["properties"]) == ["days", "schema"]
    assert bound.function(**bound.arguments('{"days": 2}')) == "Rome 2 short 1"


def test_methods_and_objects_are_tools() -> None:
    assert [each.schema[:2] for each in model_tools([Env().step, Env()])] == [
        ("step", "Take a step."),
        ("Env", "A place."),
    ]
    assert ModelTool(Env()).arguments('{"question": "why"}') == {"question": "why"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "the arguments: Invalid JSON"),
        ("[]", "the arguments: Input should be an object"),
        ('{"city": 1}', "city: Input should be an object"),
        ('{"city": {"name": "x"}, "days": 10, "p0": 1}', "days: .* 9; p0: Extra inputs are not permitted"),
        ("", "city: Field required"),
    ],
)
def test_arguments_are_checked(text: str, problem: str) -> None:
    with pytest.raises(BadArguments, match=problem):
        ModelTool(forecast).arguments(text)


def test_arguments_are_parsed_and_defaults_left_to_the_function() -> None:
    assert ModelTool(forecast).arguments('{"city": {"name": "x"}, "schema": "long"}') == {
        "city": City(name="x"),
        "schema": "long",
    }


def test_a_given_schema_replaces_the_signature() -> None:
    given = {"type": "object", "properties": {"q": {"type": "string"}}}
    search = ModelTool(lambda **words: str(words), name="search", description="Search.", parameters=given)
    assert search.schema == ("search", "Search.", json.dumps(given))
    assert search.arguments('{"q": 1}') == {"q": 1}
    with pytest.raises(BadArguments, match="not a JSON object"):
        search.arguments("[]")


def test_closures_of_a_branch_stay_tools() -> None:
    found: list[str] = []

    def note(text: str) -> None:
        found.append(text)

    first = ModelTool(note)
    other = fork.copy(first, {})
    other.function(**other.arguments('{"text": "x"}'))
    assert (found, other.schema) == ([], first.schema)


def test_unknown_types_are_named() -> None:
    def hidden(value: Unknown) -> None:  # type: ignore[name-defined]  # noqa: F821
        """Take a value."""

    with pytest.raises(TypeError, match="tool hidden: the type of a parameter is not known"):
        ModelTool(hidden)


# Calls as text


def request(messages: tuple[Message, ...], tools: Tools | None = None) -> Request:
    return Request(messages, Sampling(), 0, "a", "s", "0", 0, tools=tools)


def schema_of(choice: str = "auto", *, parallel: bool = True) -> Any:
    tools = Tools(tuple(each.schema for each in model_tools([forecast, Env().step])), choice, parallel)
    asked = as_text(request((Message("user", "q"),), tools))
    assert asked.tools is None
    return json.loads(asked.sampling.json_schema or "")


def names_in(schema: Any) -> list[str]:
    items = schema["properties"]["calls"]["items"]
    return [form["properties"]["name"]["enum"][0] for form in items.get("anyOf", [items])]


def test_the_schema_allows_what_the_choice_allows() -> None:
    both, answer = schema_of()["anyOf"]
    assert names_in(both) == ["forecast", "step"]
    assert list(answer["properties"]) == ["answer"]
    assert names_in(schema_of("required")) == ["forecast", "step"]
    assert names_in(schema_of("step")) == ["step"]
    assert list(schema_of("none")["properties"]) == ["answer"]
    assert schema_of("step", parallel=False)["properties"]["calls"]["maxItems"] == 1


def test_definitions_of_tools_are_apart() -> None:
    schema = schema_of("required")
    assert list(schema["$defs"]) == ["forecast.City"]
    assert schema["$defs"]["forecast.City"]["properties"]["near"]["items"] == {
        "$ref": "#/$defs/forecast.City"
    }


def test_the_tools_join_the_system_message() -> None:
    tools = Tools((ModelTool(Env().step).schema,))
    alone = as_text(request((Message("user", "q"),), tools)).messages
    joined = as_text(request((Message("system", "Be brief."), Message("user", "q")), tools)).messages
    assert [message.role for message in alone] == [message.role for message in joined] == ["system", "user"]
    assert joined[0].content == f"Be brief.\n\n{alone[0].content}"
    assert '"name": "step"' in alone[0].content


names = st.sampled_from(["step", "look"])
values = st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3))
written = st.builds(
    lambda name, arguments: ToolCall(None, name, json.dumps(arguments)),
    names,
    st.dictionaries(st.text(max_size=5), values, max_size=3),
)


@given(st.lists(written, min_size=1, max_size=4))
def test_calls_survive_as_text(calls: list[ToolCall]) -> None:
    tools = Tools((ModelTool(Env().step).schema,))
    done = read_calls(request((), tools), Completion(calls_as_text(calls), 1))
    assert [(call.name, json.loads(call.arguments)) for call in done.tool_calls] == [
        (call.name, json.loads(call.arguments)) for call in calls
    ]
    assert done.reply.tool_calls == done.tool_calls
    assert type(done.reply)(*json.loads(json.dumps(done.reply.to_json()))).tool_calls == done.tool_calls


@st.composite
def dialogues(draw: st.DrawFn) -> list[Message]:
    """Rounds of a question, calls with their results, and an answer."""
    messages: list[Message] = []
    for number in range(draw(st.integers(1, 3))):
        messages.append(Message("user", f"question {number}"))
        for turn in range(draw(st.integers(0, 2))):
            count = draw(st.integers(1, 3))
            native = draw(st.booleans())
            calls = tuple(
                ToolCall(f"{number}.{turn}.{each}" if native else None, "step", "{}") for each in range(count)
            )
            said = draw(st.sampled_from(["", "hm"])) if native else calls_as_text(calls)
            messages.append(ToolMessage("assistant", said, calls))
            messages += [
                ToolMessage("tool", f"result {each}", (), call.id) for each, call in enumerate(calls)
            ]
        messages.append(Message("assistant", f"answer {number}"))
    return messages


@given(dialogues())
def test_turns_without_tools_alternate_and_keep_all_texts(messages: list[Message]) -> None:
    plain = list(without_tools(messages))
    assert [message.role for message in plain] == [
        ("user", "assistant")[number % 2] for number in range(len(plain))
    ]
    assert all(type(message) is Message for message in plain)
    everything = "\n".join(message.content for message in plain)
    for message in messages:
        assert message.content in everything
    count = sum(message.role == "tool" for message in messages)
    assert everything.count("Result of step: result") == count


def test_messages_with_calls_are_compared_copied_and_stored_as_a_whole() -> None:
    one = ToolMessage("assistant", "", (ToolCall("a", "step", "{}"),))
    other = ToolMessage("assistant", "", (ToolCall("b", "step", "{}"),))
    assert one != other
    assert one != Message("assistant", "")
    assert Message("assistant", "") != one
    assert {one, copy.deepcopy(one), pickle.loads(pickle.dumps(one)), fork.copy(one, {})} == {one}
    role, content = one
    assert (role, content) == ("assistant", "")
    assert "step" in repr(one)
