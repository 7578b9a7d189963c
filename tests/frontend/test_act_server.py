"""Tools that the real small model calls: the grammar makes every answer a call or an answer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any, Literal

import pytest
from hive_frontend import Dialogue, StepsExceeded, TreeOfThoughts, act, agent, gen, run
from pydantic import BaseModel, Field

from hive.server.server_process import ServerProcess

pytestmark = pytest.mark.server

cities: list[str] = []


@pytest.fixture(scope="module")
def parsing_server(launch_server: Callable[..., ServerProcess]) -> ServerProcess:
    """A server that parses calls of tools in its chats."""
    return launch_server("--tool-call-parser", "qwen25")


def weather(city: Literal["Rome", "Oslo"], day: Annotated[int, Field(ge=1, le=7)]) -> str:
    """The weather in a city on a day of this week."""
    cities.append(city)
    return f"It is 21 degrees in {city}."


class Report(BaseModel):
    city: Literal["Rome", "Oslo"]
    warm: bool


@agent(supervisor=TreeOfThoughts(branch_at="act", branching=2, breadth=2, limit=None))
async def reporter(question: str) -> tuple[Report, list[str]]:
    talk = Dialogue().user(question)
    settings: Any = {"tools": [weather], "parallel": False, "max_tokens": 100, "temperature": 0.2}
    with suppress(StepsExceeded):
        await act(talk, tool_choice="weather", max_steps=1, **settings)
    told = [message.content for message in talk if message.role == "tool"]
    return await act(talk, tool_choice="none", schema=Report, **settings), told


def test_the_small_model_calls_a_tool_and_gets_its_result(server: ServerProcess) -> None:
    cities.clear()
    result = run(reporter, "Is it warm in Rome?", model=server.url, seed=1, on_error="drop")
    called = [node for node in result.tree.nodes if node.name == "act" and node.results]
    assert [each for node in called for each in node.results] == [
        f"It is 21 degrees in {city}." for city in cities
    ]
    # The result is in the prompt of the model's next answer.
    assert all(node.results[0] in node.prompts[0] for node in called)
    assert result.results
    for found in result.results:
        assert found.value is not None
        report, told = found.value
        assert isinstance(report, Report)
        assert told in [node.results for node in called]


def test_the_server_parses_calls_if_it_has_a_parser(parsing_server: ServerProcess) -> None:
    @agent
    async def program() -> tuple[Dialogue, int]:
        talk = Dialogue().user("Is it warm in Rome?")
        with suppress(StepsExceeded):
            await act(
                talk, tools=[weather], tool_choice="weather", max_steps=1, temperature=0, max_tokens=100
            )
        reply = await gen(talk, max_tokens=4)
        return talk, reply.prompt_tokens

    cities.clear()
    found = run(program, model=parsing_server.url, seed=1).value
    assert found is not None
    talk, prompt_tokens = found
    (each,) = talk.messages[1].tool_calls
    assert each.id is not None
    assert talk.messages[2].content.startswith(
        (f"It is 21 degrees in {''.join(cities)}", "Error: invalid arguments")
    )
    assert prompt_tokens > 20
