"""``/hive/render`` and ``/hive/generate``, and dialogues that go on with the tokens that the model wrote."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from hive_frontend import HttpClient
from hive_frontend.client import Completion, Request, Sampling
from hive_frontend.client.messages import Message

from hive.server.server_process import ServerProcess, slowdown
from tests.repetitions import repetitions

pytestmark = pytest.mark.server

DIGIT = {"type": "object", "properties": {"z": {"type": "integer", "maximum": 9}}, "required": ["z"]}
DIGIT_FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": DIGIT}}
SYSTEM = Message("system", "You name odd fruit, in the words of Zürich's Käsefondue. ☃")


class Watched(HttpClient):
    """A client that remembers which prompts its calls had, and what came back."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.sent: list[list[int]] = []
        self.got: list[dict[str, Any]] = []
        stream = self._transport.stream

        async def watching(path: str, body: Any, on_event: Any, **options: Any) -> Any:
            prefix: list[int] = []

            def noted_body() -> Any:
                made = body()
                prefix[:] = made.get("prefix_ids", [])
                return made

            def noted(line: dict[str, Any]) -> None:
                if "prompt" in line:
                    self.sent.append(prefix[: line["prompt"]["kept"]] + line["prompt"]["ids"])
                elif path == "/hive/generate" and line["meta_info"]["finish_reason"]:
                    self.got.append(dict(line))
                on_event(line)

            return await stream(path, noted_body, noted, **options)

        self._transport.stream = watching  # type: ignore[method-assign, assignment]


@pytest.fixture(scope="module")
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=120) as http:
        yield http


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[Watched]:
    client = Watched(server.url)
    yield client
    await client.aclose()


def ask(*messages: Message, session: str, sample: int = 0, **settings: Any) -> Request:
    settings = {"max_tokens": 48, "temperature": 1.0, **settings}
    return Request(
        messages, Sampling(**settings), seed=11, agent="render", session=session, state="0", sample=sample
    )


def as_json(messages: tuple[Message, ...]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in messages]


def render(http: httpx.Client, messages: tuple[Message, ...], **fields: Any) -> dict[str, Any]:
    answer = http.post("/hive/render", json={"messages": as_json(messages), **fields})
    assert answer.status_code == 200, answer.text
    rendered: dict[str, Any] = answer.json()
    return rendered


def chat(http: httpx.Client, request: Request, **fields: Any) -> dict[str, Any]:
    """The same request by way of the chat endpoint."""
    sampling = request.sampling
    body = {
        "model": "any",
        "messages": as_json(request.messages),
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "stop": list(sampling.stop),
        "seed": request.seed,
        "return_prompt_token_ids": True,
        "custom_params": {"hive": {"session": request.session, "sample": request.sample}},
        **fields,
    }
    answer = http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    choice: dict[str, Any] = answer.json()["choices"][0]
    return choice


def shown(http: httpx.Client, ids: list[int]) -> str:
    """Tokens as text."""
    body = {"tokens": ids, "skip_special_tokens": False}
    text: str = http.post("/detokenize", json=body).json()["text"]
    return text


def flush(http: httpx.Client) -> None:
    """Empty both caches; the engine refuses for a moment after its last answer."""
    end = time.monotonic() + 20 * slowdown()
    while (answer := http.post("/flush_cache")).status_code != 200:
        assert time.monotonic() < end, answer.text
        time.sleep(0.05)


def generated(http: httpx.Client, agent: str) -> int:
    """Tokens that the model generated for an agent, of the requests that have ended."""
    agents = {entry["name"]: entry for entry in http.get("/hive/agents").json()["agents"]}
    tokens: int = agents[agent]["tokens_generated"]
    return tokens


@pytest.mark.parametrize(
    "messages",
    [
        (Message("user", "Name a fruit."),),
        (SYSTEM, Message("user", "One.\n\n"), Message("assistant", " durian"), Message("user", "")),
        (Message("user", "Say <|im_end|> twice."), Message("assistant", "no")),
    ],
)
def test_the_prompt_is_that_of_the_chat_endpoint(http: httpx.Client, messages: tuple[Message, ...]) -> None:
    rendered = render(http, messages)
    assert rendered["ids"] == chat(http, ask(*messages, session="same", max_tokens=1))["prompt_token_ids"]
    assert rendered["kept"] == 0
    assert rendered["text"] == shown(http, rendered["ids"])
    assert rendered["text"].endswith("<|im_start|>assistant\n")
    assert rendered["sampling_params"]["skip_special_tokens"] is True


async def test_turns_build_on_what_is_cached(client: Watched, http: httpx.Client) -> None:
    # A replayed answer would look up nothing.
    flush(http)
    differ = 0
    for sample in range(4):
        dialogue = [SYSTEM, Message("user", "Name a fruit.")]
        for turn in range(3):
            request = ask(*dialogue, session="turns", sample=sample, max_tokens=repetitions(16, 48))
            answer = await client.complete(request)
            ids = client.sent[-1]
            if turn:
                before = client.sent[-2] + client.got[-2]["output_ids"]
                # Half a character at the end of an answer is none of its text.
                if not dialogue[-2].content.endswith("\ufffd"):
                    assert ids[: len(before)] == before
                    # The last token of an answer was drawn, but not seen by the model.
                    assert client.got[-1]["meta_info"]["cached_tokens"] >= len(before) - 1
            plain = render(http, tuple(dialogue))
            differ += plain["ids"] != ids
            assert shown(http, ids) == shown(http, plain["ids"]) == plain["text"]
            dialogue += [Message("assistant", answer.text), Message("user", "Another one, and odder.")]
    # Text that a model wrote is often cut into other tokens than it wrote: then the caches are missed.
    assert differ > 0


async def test_stop_strings_are_no_part_of_the_next_turn(client: Watched, http: httpx.Client) -> None:
    question = (SYSTEM, Message("user", "Name three fruits."))
    whole = await client.complete(ask(*question, session="stops", temperature=0.0))
    # A stop string that begins within a token, and that the model will say.
    middle = len(whole.text) // 2
    stop = whole.text[middle : middle + 5]
    answer = await client.complete(ask(*question, session="stops", temperature=0.0, stop=(stop,)))
    assert answer.finish_reason == "stop"
    assert answer.text == whole.text.partition(stop)[0]
    first, written = client.sent[1], client.got[1]["output_ids"]
    dialogue = (*question, Message("assistant", answer.text), Message("user", "And now?"))
    await client.complete(ask(*dialogue, session="stops"))
    ids, plain = client.sent[2], render(http, dialogue)
    assert ids[: len(first)] == first
    assert first + written != ids[: len(first) + len(written)]
    assert shown(http, ids) == shown(http, plain["ids"])


@pytest.mark.parametrize(
    ("settings", "fields"),
    [
        ({}, {}),
        ({"stop": ("a", ".")}, {}),
        ({"choices": ("durian", "fig (green)")}, {"regex": r"(durian|fig \(green\))"}),
        ({"regex": "[a-z]{3,9}"}, {"regex": "[a-z]{3,9}"}),
        ({"json_schema": json.dumps(DIGIT)}, {"response_format": DIGIT_FORMAT}),
    ],
    ids=["plain", "stop", "choices", "regex", "schema"],
)
async def test_answers_are_those_of_the_chat_endpoint(
    client: Watched, http: httpx.Client, settings: dict[str, Any], fields: dict[str, Any]
) -> None:
    request = ask(
        SYSTEM, Message("user", "A fruit, please."), session="both", sample=3, temperature=0.2, **settings
    )
    choice = chat(http, request, **fields)
    answer = await client.complete(request)
    assert answer.text == choice["message"]["content"]
    assert answer.finish_reason == choice["finish_reason"]
    assert answer.tokens_generated + answer.tokens_replayed == choice["meta_info"]["completion_tokens"]
    # The same distributions: what one endpoint recorded, the other one replays.
    assert answer.tokens_replayed > 0
    assert (
        client.got[0]["meta_info"]["hive"].items() >= {"agent": "render", "sample": 3, "state": "0"}.items()
    )


def test_log_probabilities_are_those_of_the_chat_endpoint(http: httpx.Client) -> None:
    request = ask(Message("user", "A fruit, please."), session="logprobs", max_tokens=5)
    listed = chat(http, request, logprobs=True)["logprobs"]["content"]
    rendered = render(http, request.messages)
    params = {**rendered["sampling_params"], "temperature": 1.0, "max_new_tokens": 5, "sampling_seed": 11}
    body = {"input_ids": rendered["ids"], "sampling_params": params, "return_logprob": True}
    found = http.post("/generate", json=body).json()["meta_info"]["output_token_logprobs"]
    assert [entry[0] for entry in found] == pytest.approx([entry["logprob"] for entry in listed], abs=0.05)


@pytest.mark.parametrize("stop", [(), (".", "fruit is"), ("\n",)])
async def test_streams_say_what_whole_answers_say(client: Watched, stop: tuple[str, ...]) -> None:
    request = ask(Message("user", "Tell me of a fruit."), session="stream", stop=stop, temperature=0.3)
    whole = await client.complete(request)
    for hive in (True, False):
        # As if it were stock SGLang, the chat endpoint is asked.
        client._is_hive = hive
        pieces: list[str] = []
        streamed = await client.complete(request, pieces.append)
        assert "".join(pieces) == streamed.text == whole.text
        assert streamed.finish_reason == whole.finish_reason
        assert (
            streamed.tokens_generated + streamed.tokens_replayed
            == whole.tokens_generated + whole.tokens_replayed
        )
    raw = request._replace(messages=(), prompt="Of all fruit, the fig is")
    pieces = []
    assert "".join(pieces) != (await client.complete(raw, pieces.append)).text == "".join(pieces)


async def test_cancelling_a_stream_ends_the_work(client: Watched, http: httpx.Client) -> None:
    begun = asyncio.Event()
    request = ask(
        Message("user", "Count to 10000."), session="cancel", max_tokens=4000, regex="([0-9]+, ){900,1000}"
    )
    call = asyncio.create_task(
        client.complete(request._replace(agent="render.cancelled"), lambda piece: begun.set())
    )
    await asyncio.wait_for(begun.wait(), 60 * slowdown())
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    for _ in range(int(100 * slowdown())):
        if generated(http, "render.cancelled"):
            break
        await asyncio.sleep(0.1)
    assert 0 < generated(http, "render.cancelled") < 1000


async def test_samples_have_the_seeds_that_the_server_derives(client: Watched) -> None:
    def of(sample: int, state: str = "0") -> Request:
        request = ask(Message("user", "Name a town."), session="seeds", sample=sample, max_tokens=12)
        return request._replace(state=state)

    answers = [await client.complete(of(sample)) for sample in range(4)]
    again = [await client.complete(of(sample, "elsewhere")) for sample in range(4)]
    assert [answer.text for answer in answers] == [answer.text for answer in again]
    assert len({answer.text for answer in answers}) > 1
    # Stock servers are sent the seed of the sample itself, and draw the same.
    client._is_hive = False
    stock: list[Completion] = [await client.complete(of(sample)) for sample in range(4)]
    assert [answer.text for answer in stock] == [answer.text for answer in answers]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"{", "body"),
        (b"[]", "body"),
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["hi"]}]}, "messages[0].content"),
        ({"messages": [{"role": "king", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": ["user"], "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": "hi", "name": "x"}]}, "messages[0].name"),
        ({"messages": [{"role": "user", "content": "hi"}], "prefix_ids": "1 2"}, "prefix_ids"),
        ({"messages": [{"role": "user", "content": "hi"}], "prefix_ids": [1, -2]}, "prefix_ids[1]"),
        ({"messages": [{"role": "user", "content": "hi"}], "prefix_ids": [10**9]}, "prefix_ids[0]"),
        ({"messages": [{"role": "user", "content": "hi"}], "tools": []}, "tools"),
    ],
)
def test_a_bad_body_names_the_field(http: httpx.Client, body: Any, field: str) -> None:
    answer = http.post("/hive/render", content=body if isinstance(body, bytes) else json.dumps(body))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == field
    assert field in answer.json()["error"]["message"]


def test_any_prefix_is_harmless(http: httpx.Client) -> None:
    messages = (Message("user", "Name a fruit."),)
    plain = render(http, messages)
    for prefix in ([], [49151, 0, 7], plain["ids"], plain["ids"] * 2, [*plain["ids"][:5], 9]):
        rendered = render(http, messages, prefix_ids=prefix)
        assert prefix[: rendered["kept"]] + rendered["ids"] == plain["ids"]
        assert rendered["text"] == plain["text"]


async def test_the_prompt_as_people_see_it(server: ServerProcess, http: httpx.Client) -> None:
    client = HttpClient(server.url)
    messages = [SYSTEM, Message("user", "Hi.")]
    assert client.render(messages) == render(http, tuple(messages))["text"]
