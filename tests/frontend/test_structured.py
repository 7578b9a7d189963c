"""Typed answers: schemas, instances, and what is said about answers that are none."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from hive_frontend import HttpClient, Reply
from hive_frontend.client import Request, Sampling
from hive_frontend.client.messages import Message
from hive_frontend.client.structured import InvalidAnswer, parse_as, schema_of
from pydantic import BaseModel, Field
from typing_extensions import TypedDict


class Mood(enum.Enum):
    CALM = "calm"
    CROSS = "cross"


class Step(BaseModel):
    why: str = Field(max_length=24)
    act: Literal["look", "push"]
    times: int = Field(ge=1, le=9)


class Plan(BaseModel):
    """Its fields are in no alphabetical order, on purpose."""

    title: str = Field(max_length=16)
    steps: list[Step] = Field(min_length=1, max_length=2)
    mood: Mood


@dataclass
class Point:
    y: int
    x: float


@dataclass
class Square:
    """Bounded: a number that a model draws digit by digit need not end."""

    rank: Annotated[int, Field(ge=1, le=8)]
    file: Annotated[int, Field(ge=1, le=8)]


class Size(TypedDict):
    width: int


class Unhashable:
    __hash__ = None  # type: ignore[assignment]


def test_fields_keep_their_order() -> None:
    schema = json.loads(schema_of(Plan))
    assert list(schema["properties"]) == ["title", "steps", "mood"]
    assert list(schema["$defs"]["Step"]["properties"]) == ["why", "act", "times"]
    assert schema["properties"]["title"]["maxLength"] == 16


@pytest.mark.parametrize(
    ("model", "text", "value"),
    [
        (Point, '{"y": 1, "x": 2.5}', Point(1, 2.5)),
        (Size, '{"width": 3}', {"width": 3}),
        (list[int], "[1, 2]", [1, 2]),
        (Literal["a", "b"], '"b"', "b"),
        (Mood, '"cross"', Mood.CROSS),
        (int, "7", 7),
        (tuple[int, str], '[1, "x"]', (1, "x")),
        (dict[str, bool], '{"a": true}', {"a": True}),
        (Annotated[list[int], Field(max_length=2), Unhashable()], "[1]", [1]),
    ],
)
def test_any_type_that_pydantic_takes(model: Any, text: str, value: Any) -> None:
    assert isinstance(json.loads(schema_of(model)), dict)
    assert parse_as(model, text) == value


def test_types_without_a_schema() -> None:
    for model in (Unhashable, type):
        with pytest.raises(
            TypeError, match=r"cannot be parsed as .* which has no JSON schema .* use a pydantic model"
        ):
            schema_of(model)


def test_what_is_wrong_with_an_answer() -> None:
    text = '{"title": "t", "steps": [{"why": "", "act": "jump", "times": 10}], "mood": "calm"}'
    with pytest.raises(
        InvalidAnswer, match=r"not a valid Plan: steps\.0\.act: .*; steps\.0\.times: .*; the answer was"
    ) as caught:
        parse_as(Plan, text)
    assert caught.value.text == text
    with pytest.raises(InvalidAnswer, match="the whole answer: Invalid JSON"):
        parse_as(Plan, "Sure! Here is")
    with pytest.raises(InvalidAnswer, match=r"and 15 more; the answer was '\[.{499}\.\.\.'"):
        parse_as(list[int], json.dumps(["x" * 50] * 20))


def test_an_answer_that_was_cut_off() -> None:
    text = '{"title": "t", "ste'
    for cut in (
        lambda: parse_as(Plan, text, "length"),
        lambda: parse_as(Plan, Reply(text, finish_reason="length")),
    ):
        with pytest.raises(
            InvalidAnswer, match=r"cut off at max_tokens before it was a complete Plan: raise max_tokens"
        ):
            cut()
    # One that happened to be complete is one.
    assert parse_as(list[int], "[1]", "length") == [1]


async def test_a_real_server_answers_with_an_instance(server: Any) -> None:
    client = HttpClient(server.url)
    types: list[Any] = [Plan, list[Annotated[int, Field(ge=10, le=20)]], Mood, Square]
    for number, model in enumerate(types):
        sampling = Sampling(max_tokens=160, temperature=0.7, json_schema=schema_of(model))
        messages = (Message("user", "Plan a walk in the rain, in JSON."),)
        request = Request(
            messages, sampling, seed=3 + number, agent="typed", session="typed", state="0", sample=0
        )
        answer = await client.complete(request)
        value = parse_as(model, answer.text, answer.finish_reason)
        if model is Plan:
            assert 1 <= len(value.steps) <= 2
            assert all(1 <= step.times <= 9 for step in value.steps)
            short = request._replace(sampling=sampling._replace(max_tokens=4))
            answer = await client.complete(short)
            with pytest.raises(InvalidAnswer, match="raise max_tokens"):
                parse_as(model, answer.text, answer.finish_reason)
    await client.end_session("typed")
    await client.aclose()
