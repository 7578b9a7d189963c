"""Calls that ask for the same in the same moment: one request, and what each would have got alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
import tenacity
from hive_frontend import BestOfN, HttpClient, ModelError, agent, arun, gen
from hive_frontend.client import CallTimeout, Completion, Request, sample_seed

from tests.frontend.http_server import Answer, Events, Lines, Received, Server
from tests.frontend.test_http_client import HIVE, MODELS, SGLANG, ask, chat, render

PROMPT = [ord(char) for char in "<user>q"]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the pauses between attempts."""
    monkeypatch.setattr("tenacity.wait_random_exponential", lambda **_: tenacity.wait_none())


def drawn(index: int, sample: int, text: str | None = None, finish: Any = None) -> dict[str, Any]:
    """A line with the answer to a sample."""
    meta = {
        "completion_tokens": 3,
        "finish_reason": finish or {"type": "stop", "matched": 2},
        "hive": {"tokens_replayed": 1, "tokens_generated": 2},
    }
    return {
        "index": index,
        "text": text or f"answer {sample}",
        "output_ids": [7, sample, 2],
        "meta_info": meta,
    }


def calls_of(request: Received) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = request.body.get("calls", [request.body])
    return calls


def sample_of(request: Received, index: int) -> int:
    numbers = [
        {**call["sampling_params"]["custom_params"]["hive"], **sample.get("hive", {})}["sample"]
        for call in calls_of(request)
        for sample in call["samples"]
    ]
    return int(numbers[index])


def samples_of(request: Received) -> int:
    return sum(len(call["samples"]) for call in calls_of(request))


def prompt_line(request: Received) -> list[Any]:
    lines = []
    for at, call in enumerate(calls_of(request)):
        if "messages" in call:
            rendered = render(replace(request, body=call))[1]
            lines.append({"prompt": {"call": at, "kept": rendered["kept"], "ids": rendered["ids"]}})
    return lines


def hive_generate(request: Received) -> Answer:
    """All samples at once."""

    async def lines() -> AsyncIterator[Any]:
        for line in prompt_line(request):
            yield line
        for index in range(samples_of(request)):
            yield drawn(index, sample_of(request, index))

    return 200, Lines(lines())


def hive_server(generate: Callable[[Received], Any] = hive_generate) -> Server:
    return Server(
        {
            **HIVE,
            "POST /hive/generate": generate,
            "DELETE /hive/requests/*": lambda request: (200, {}),
        }
    )


def answer_of(sample: int, prompt: Any = None) -> Completion:
    return Completion(f"answer {sample}", 2, 1, "stop", PROMPT if prompt is None else prompt, [7, sample, 2])


async def all_of(client: HttpClient, requests: list[Request], *listeners: Any) -> list[Any]:
    calls = [
        client.complete(request, *listeners[index : index + 1]) for index, request in enumerate(requests)
    ]
    return await asyncio.gather(*calls, return_exceptions=True)


async def test_samples_of_a_state_travel_together() -> None:
    async with hive_server() as server:
        client = HttpClient(server.url, tenant="lab")
        requests = [ask("q", sample=number, temperature=0.5, stop=("x",)) for number in range(4)]
        assert await all_of(client, requests) == [answer_of(number) for number in range(4)]
        await client.aclose()
    (request,) = server.received
    tag = {"agent": "judge", "session": "s-1", "state": "0.1", "replay": "stepwise", "tenant": "lab"}
    samples = request.body.pop("samples")
    assert request.body == {
        "messages": [{"role": "user", "content": "q"}],
        "sampling_params": {
            "max_new_tokens": 256,
            "temperature": 0.5,
            "stop": ["x"],
            "custom_params": {"hive": tag},
        },
        "stream": False,
    }
    names = [sample.pop("rid") for sample in samples]
    assert samples == [{"sampling_seed": 7, "hive": {"sample": number}} for number in range(4)]
    assert len(set(names)) == 4
    # A server may take a name for all that begin with it.
    assert len({len(name) for name in names}) == 1


async def test_prompts_of_a_turn_travel_in_one_request() -> None:
    asked = [
        ask("q", sample=0),
        ask("r", sample=1, temperature=0.5),
        ask("q", sample=2),
        ask(prompt="q", sample=3),
        ask("q", sample=4, session="s-2"),
    ]
    async with hive_server() as server:
        client = HttpClient(server.url)
        await client.register("judge", "s-1")
        answers = await all_of(client, asked)
        await client.complete(ask("q", "answer 2", "r"))
        await client.aclose()
    prompts: list[Any] = [PROMPT, [ord(char) for char in "<user>r"], PROMPT, (), PROMPT]
    assert answers == [answer_of(number, prompt) for number, prompt in enumerate(prompts)]
    together, later = server.asked("/hive/generate")
    assert [
        (call.get("text") or call["messages"][0]["content"], len(call["samples"]))
        for call in together.body["calls"]
    ] == [("q", 2), ("r", 1), ("q", 1), ("q", 1)]
    assert [call["sampling_params"].get("temperature") for call in together.body["calls"]] == [
        None,
        0.5,
        None,
        None,
    ]
    assert later.body["prefix_ids"] == [*PROMPT, 7, 2, 2]


async def test_other_servers_get_a_request_for_each_prompt() -> None:
    others = [ask("q"), ask("r"), ask("q", temperature=0.5), ask("q", session="s-2")]
    async with hive_server() as server:
        # The client has not asked yet whether this is a Hive server.
        client = HttpClient(server.url)
        await all_of(client, others)
        await client.aclose()
        known = HttpClient(server.url)
        await known.register("judge", "s-1")
        await all_of(known, [ask("q"), ask("q", attempts=2)])
        await all_of(known, [ask("q"), ask("q")], lambda text: None)
        await known.aclose()
        single = HttpClient(server.url, merge=False)
        await all_of(single, [ask("p", sample=number) for number in range(3)])
        await single.aclose()
    sent = [calls_of(request) for request in server.asked("/hive/generate")]
    # A stream and a whole answer may travel together, but as two prompts.
    assert [len(calls) for calls in sent] == [1] * (len(others) + 2) + [2] + [1] * 3
    assert all(len(call["samples"]) == 1 for calls in sent for call in calls)
    assert not any("rid" in sample for (call, *more) in sent if not more for sample in call["samples"])


async def test_a_refused_prompt_leaves_the_others() -> None:
    def generate(request: Received) -> Any:
        refused = any(call["messages"][0]["content"] == "bad" for call in calls_of(request))
        return (400, {"detail": "too long"}) if refused else hive_generate(request)

    async with hive_server(generate) as server:
        client = HttpClient(server.url)
        await client.register("judge", "s-1")
        answers = await all_of(client, [ask("q"), ask("bad", sample=1), ask("r", sample=2)])
        await client.aclose()
    assert [getattr(answer, "text", None) for answer in answers] == ["answer 0", None, "answer 2"]
    assert answers[1].status == 400
    assert len(server.asked("/hive/generate")) == 4


async def test_an_unknown_model_is_the_error_of_its_own_calls() -> None:
    async with hive_server() as server:
        server.routes["GET /v1/models"] = lambda request: (200, {"data": [{"id": "m", "owned_by": "sglang"}]})
        client = HttpClient(server.url)
        await client.register("judge", "s-1")
        answer, refused = await all_of(client, [ask("q"), ask("r", sample=1, model="unknown")])
        await client.aclose()
    assert answer == answer_of(0)
    assert "has no model 'unknown'" in str(refused)


async def test_a_call_that_leaves_is_aborted_while_other_prompts_go_on() -> None:
    last = asyncio.Event()

    def generate(request: Received) -> Answer:
        async def lines() -> AsyncIterator[Any]:
            for line in prompt_line(request):
                yield line
            await last.wait()
            yield drawn(1, 1)

        return 200, Lines(lines())

    async with hive_server(generate) as server:
        client = HttpClient(server.url)
        await client.register("judge", "s-1")
        left, stays = (
            asyncio.create_task(client.complete(ask(text, sample=at))) for at, text in enumerate("qr")
        )
        await server.until(2)
        left.cancel()
        await server.until(3)
        last.set()
        assert (await stays).text == "answer 1"
        await client.aclose()
    (request,) = server.asked("/hive/generate")
    rid = request.body["calls"][0]["samples"][0]["rid"]
    assert [request.path for request in server.received if request.method == "DELETE"] == [
        f"/hive/requests/{rid}"
    ]


async def test_a_search_asks_once_for_the_samples_of_a_state() -> None:
    @agent(supervisor=BestOfN(5))
    async def program() -> str:
        return await gen("q", name="ask")

    async with hive_server() as server:
        result = await arun(program, model=server.url)
    assert sorted(found.value for found in result.results) == [f"answer {number}" for number in range(5)]
    assert [len(request.body["samples"]) for request in server.asked("/hive/generate")] == [5]
    assert not server.asked("/hive/render")


async def test_agents_and_states_that_ask_the_same_keep_their_tags() -> None:
    async with hive_server() as server:
        client = HttpClient(server.url)
        votes = [
            ask("q")._replace(agent=f"voter-{number}", state=f"0.{number}", seed=number)
            for number in range(2)
        ]
        await all_of(client, votes)
        await client.aclose()
    (request,) = server.received
    assert [(sample["sampling_seed"], sample["hive"]) for sample in request.body["samples"]] == [
        (0, {"agent": "voter-0", "state": "0.0"}),
        (1, {"agent": "voter-1", "state": "0.1"}),
    ]


async def test_an_answer_does_not_wait_for_the_others() -> None:
    last = asyncio.Event()

    def generate(request: Received) -> Answer:
        async def lines() -> AsyncIterator[Any]:
            yield prompt_line(request)[0]
            yield drawn(1, 1)
            await last.wait()
            yield drawn(0, 0)

        return 200, Lines(lines())

    async with hive_server(generate) as server:
        client = HttpClient(server.url)
        slow, quick = (asyncio.create_task(client.complete(ask("q", sample=number))) for number in range(2))
        assert await asyncio.wait_for(quick, 5) == answer_of(1)
        assert not slow.done()
        last.set()
        assert await slow == answer_of(0)
        await client.aclose()


async def test_one_that_is_cancelled_or_too_slow_leaves_the_others() -> None:
    last = asyncio.Event()

    def generate(request: Received) -> Answer:
        async def lines() -> AsyncIterator[Any]:
            yield prompt_line(request)[0]
            await last.wait()
            for index in range(3):
                yield drawn(index, index)

        return 200, Lines(lines())

    async with hive_server(generate) as server:
        client = HttpClient(server.url)
        limits = [None, 0.1, None]
        calls = [
            asyncio.create_task(client.complete(ask("q", sample=number, timeout_s=limit)))
            for number, limit in enumerate(limits)
        ]
        with pytest.raises(CallTimeout, match=r"no answer within 0.1 s"):
            await calls[1]
        calls[0].cancel()
        await asyncio.wait({calls[0]})
        await server.until(3)
        last.set()
        assert await calls[2] == answer_of(2)
        await client.aclose()
    (request,) = server.asked("/hive/generate")
    names = [f"/hive/requests/{sample['rid']}" for sample in request.body["samples"]]
    given_up = [request.path for request in server.received if request.method == "DELETE"]
    assert given_up == [names[1], names[0]]
    assert not server.hung_up.is_set()


async def test_when_all_are_gone_the_connection_closes() -> None:
    def generate(request: Received) -> Answer:
        async def lines() -> AsyncIterator[Any]:
            yield prompt_line(request)[0]
            await asyncio.sleep(60)

        return 200, Lines(lines())

    async with hive_server(generate) as server:
        client = HttpClient(server.url)
        calls = [asyncio.create_task(client.complete(ask("q", sample=number))) for number in range(3)]
        await server.until(1)
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        await asyncio.wait_for(server.hung_up.wait(), 5)
        # Whoever goes before the request is sent is not asked for.
        calls = [asyncio.create_task(client.complete(ask("r", sample=number))) for number in range(2)]
        await asyncio.sleep(0)
        calls[0].cancel()
        await server.until(2)
        calls[1].cancel()
        await asyncio.wait(calls)
        await client.aclose()
    assert len(server.asked("/hive/generate")[1].body["samples"]) == 1


async def test_a_retry_asks_for_what_was_not_answered() -> None:
    def generate(request: Received) -> Answer:
        async def lines() -> AsyncIterator[Any]:
            yield prompt_line(request)[0]
            yield drawn(1, sample_of(request, 1))
            yield None

        return 200, Lines(lines()) if len(server.asked("/hive/generate")) == 1 else hive_generate(request)[1]

    async with hive_server(generate) as server:
        client = HttpClient(server.url)
        answers = await all_of(client, [ask("q", sample=number) for number in range(3)])
        await client.aclose()
    assert answers == [answer_of(number) for number in range(3)]
    second = server.asked("/hive/generate")[1]
    assert [sample_of(second, index) for index in range(2)] == [0, 2]


async def test_the_error_of_one_is_its_own() -> None:
    attempts = 0

    def generate(request: Received) -> Answer:
        nonlocal attempts
        attempts += 1

        async def lines() -> AsyncIterator[Any]:
            yield prompt_line(request)[0]
            for index in range(len(request.body["samples"])):
                sample = sample_of(request, index)
                if sample == 0:
                    yield {
                        "index": index,
                        "error": {"status": 400, "message": "no such seed", "param": "seed"},
                    }
                elif sample == 1 and attempts == 1:
                    yield {"index": index, "error": {"status": 503, "message": "busy"}}
                elif sample == 2:
                    yield {"index": index, "error": {"status": 503, "message": "still busy"}}
                else:
                    yield drawn(index, sample)

        return 200, Lines(lines())

    async with hive_server(generate) as server:
        client = HttpClient(server.url, attempts=3)
        answers = await all_of(client, [ask("q", sample=number) for number in range(4)])
        await client.aclose()
    assert answers[1::2] == [answer_of(1), answer_of(3)]
    assert str(answers[0]).endswith("/hive/generate: the server answered 400: no such seed")
    assert str(answers[2]).endswith("/hive/generate: the server answered 503: still busy")
    assert (answers[0].status, answers[2].status, attempts) == (400, 503, 3)


async def test_what_is_refused_together_is_asked_alone() -> None:
    def generate(request: Received) -> Any:
        samples = [sample_of(request, index) for index in range(len(request.body["samples"]))]
        return (400, {"detail": "sample 1 is odd"}) if 1 in samples else hive_generate(request)

    async with hive_server(generate) as server:
        client = HttpClient(server.url)
        refused, answer = await all_of(client, [ask("q", sample=1), ask("q", sample=2)])
        await client.aclose()
    assert answer == answer_of(2)
    assert (str(refused)[-15:], refused.status) == ("sample 1 is odd", 400)
    assert len(server.asked("/hive/generate")) == 3


async def test_streams_travel_together() -> None:
    def generate(request: Received) -> Answer:
        async def lines() -> AsyncIterator[Any]:
            yield prompt_line(request)[0]
            for end, finish in (2, None), (4, None), (8, {"type": "stop", "matched": "END"}):
                for index in range(2):
                    text = f"a{index}b{index}cEND"[:end]
                    yield drawn(index, index, text) | {"meta_info": {"finish_reason": finish}}

        return 200, Lines(lines())

    async with hive_server(generate) as server:
        client = HttpClient(server.url)
        heard: list[list[str]] = [[], []]
        requests = [ask("q", sample=number) for number in range(2)]
        answers = await all_of(client, requests, *(pieces.append for pieces in heard))
        await client.aclose()
    (request,) = server.received
    assert request.body["stream"]
    assert request.body["sampling_params"]["no_stop_trim"]
    assert [answer.text for answer in answers] == ["a0b0c", "a1b1c"]
    assert heard == [["a0", "b0", "c"], ["a1", "b1", "c"]]


async def test_a_listener_that_fails_ends_its_own_call_only() -> None:
    def generate(request: Received) -> Answer:
        async def lines() -> AsyncIterator[Any]:
            for line in prompt_line(request):
                yield line
            for finish in (None, {"type": "stop", "matched": 2}):
                for index in range(2):
                    yield drawn(index, index, "ab"[: 1 if finish is None else 2]) | {
                        "meta_info": {"finish_reason": finish}
                    }

        return 200, Lines(lines())

    def broken(text: str) -> None:
        raise BrokenPipeError("the terminal is gone")

    async with hive_server(generate) as server:
        client = HttpClient(server.url)
        await client.register("judge", "s-1")
        heard: list[str] = []
        failed, answer = await all_of(client, [ask("q"), ask("r", sample=1)], broken, heard.append)
        await server.until(3)
        await client.aclose()
    assert isinstance(failed, BrokenPipeError)
    assert (answer.text, heard) == ("ab", ["a", "b"])
    (request,) = server.asked("/hive/generate")
    rid = request.body["calls"][0]["samples"][0]["rid"]
    assert [each.path for each in server.received if each.method == "DELETE"] == [f"/hive/requests/{rid}"]


async def test_an_overloaded_server_is_not_asked_for_each_call() -> None:
    async with hive_server(lambda request: (503, b"busy")) as server:
        client = HttpClient(server.url, attempts=2)
        await client.register("judge", "s-1")
        errors = await all_of(client, [ask("q"), ask("r", sample=1)])
        await client.aclose()
    assert [error.status for error in errors] == [503, 503]
    assert len(server.asked("/hive/generate")) == 2


async def test_a_stream_that_has_begun_is_not_begun_again() -> None:
    def generate(request: Received) -> Answer:
        async def lines() -> AsyncIterator[Any]:
            yield prompt_line(request)[0]
            for index in range(len(request.body["samples"])):
                sample = sample_of(request, index)
                if sample == 0:
                    yield drawn(index, 0, "a") | {"meta_info": {"finish_reason": None}}
                    yield None
                yield drawn(index, sample)

        return 200, Lines(lines())

    async with hive_server(generate) as server:
        client = HttpClient(server.url)
        requests = [ask("q", sample=number) for number in range(2)]
        lost, answer = await all_of(client, requests, print, print)
        await client.aclose()
    assert answer == answer_of(1)
    assert "the connection was closed before the answer was complete" in str(lost)


async def test_a_dialogue_goes_on_with_the_tokens_that_the_model_wrote_in_one_request() -> None:
    async with hive_server() as server:
        client = HttpClient(server.url)
        for contents in (["q"], ["q", "answer 0", "r"], ["q"], ["q", "answer 0", "r"]):
            done = await client.complete(ask(*contents))
        await client.complete(ask(prompt="raw"))
        await client.end_session("s-1")
        await client.complete(ask("q", "answer 0", "r"))
        await client.aclose()
    asked = server.asked("/hive/generate")
    assert [request.body.get("prefix_ids") for request in asked] == [
        None,
        [*PROMPT, 7, 0, 2],
        None,
        [*PROMPT, 7, 0, 2],
        None,
        None,
    ]
    assert list(done.prompt_ids)[: len(PROMPT) + 3] == [*PROMPT, 7, 0, 2]
    assert asked[4].body["text"] == "raw"
    assert not server.asked("/hive/render")


async def test_a_chat_endpoint_that_does_more_is_asked_and_remembered() -> None:
    def refuse(request: Received) -> Answer:
        return 409, {"error": {"message": "it reasons", "code": "chat_endpoint_only"}}

    async with hive_server(refuse) as server:
        server.routes |= {**MODELS, "POST /v1/chat/completions": chat}
        client = HttpClient(server.url)
        answers = await all_of(client, [ask("q", sample=number) for number in range(3)])
        await client.complete(ask("r"))
        await client.aclose()
    assert answers == [Completion("hello", 3, 2, "stop")] * 3
    assert len(server.asked("/hive/generate")) == 1
    chats = [request.body for request in server.asked("/v1/chat/completions")]
    assert [body["custom_params"]["hive"]["sample"] for body in chats] == [0, 1, 2, 0]
    assert not any("n" in body for body in chats)


async def test_stock_sglang_takes_lists() -> None:
    async with Server(SGLANG) as server:
        client = HttpClient(server.url)
        answers = await all_of(client, [ask(prompt="q", sample=number, max_tokens=5) for number in range(3)])
        await client.aclose()
    assert [answer.text for answer in answers] == [" world"] * 3
    (request,) = server.asked("/generate")
    assert request.body["text"] == ["q"] * 3
    seeds = [settings["sampling_seed"] for settings in request.body["sampling_params"]]
    assert seeds == [sample_seed(7, number) for number in range(3)]
    assert [settings["max_new_tokens"] for settings in request.body["sampling_params"]] == [5] * 3
    # Without a stream the first answer would come with the last one.
    assert request.body["stream"]
    assert len(set(request.body["rid"])) == 3


def choices(request: Received) -> Answer:
    many = [
        {"index": index, "message": {"content": f"{index}"}, "finish_reason": "stop"}
        for index in range(request.body.get("n", 1))
    ]
    return 200, {"choices": many, "usage": {"completion_tokens": 5 * len(many) + 1}}


async def test_openai_compatible_servers_are_asked_for_several_choices() -> None:
    async with Server({**MODELS, "POST /v1/chat/completions": choices}) as server:
        client = HttpClient(server.url)
        answers = await all_of(client, [ask("q", sample=number) for number in (3, 4)])
        greedy = await all_of(client, [ask("q", sample=number, temperature=0.0) for number in range(2)])
        await client.aclose()
    assert answers == [Completion("0", 6, 0, "stop"), Completion("1", 5, 0, "stop")]
    assert greedy == [Completion("0", 6, 0, "stop")] * 2
    bodies = [request.body for request in server.asked("/v1/chat/completions")]
    assert [(body.get("n"), body["seed"]) for body in bodies] == [
        (2, sample_seed(7, 3)),
        (None, 7),
        (None, sample_seed(7, 1)),
    ]


@pytest.mark.parametrize("deterministic", [False, True, None])
async def test_choices_of_sglang_are_asked_for_where_they_differ(deterministic: bool | None) -> None:
    routes: dict[str, Any] = {
        "GET /v1/models": lambda request: (200, {"data": [{"id": "m", "owned_by": "sglang"}]}),
        "POST /v1/chat/completions": choices,
    }
    if deterministic is not None:
        routes["GET /server_info"] = lambda request: (200, {"enable_deterministic_inference": deterministic})
    async with Server(routes) as server:
        client = HttpClient(server.url)
        await all_of(client, [ask("q", sample=number) for number in range(2)])
        await client.aclose()
    assert len(server.asked("/v1/chat/completions")) == (1 if deterministic is False else 2)


@pytest.mark.parametrize("refusal", ["error", "silence"])
async def test_a_server_of_single_choices_is_remembered(refusal: str) -> None:
    def one(request: Received) -> Answer:
        if "n" in request.body and refusal == "error":
            return 400, {"detail": "n must be 1"}
        request.body.pop("n", None)
        return choices(request)

    async with Server({**MODELS, "POST /v1/chat/completions": one}) as server:
        client = HttpClient(server.url)
        for prompt in "qr":
            answers = await all_of(client, [ask(prompt, sample=number) for number in range(3)])
            assert [answer.text for answer in answers] == ["0"] * 3
        await client.aclose()
    count = len(server.asked("/v1/chat/completions"))
    assert count == 3 + 3 + (1 if refusal == "error" else 0)


async def test_what_is_wrong_alone_says_nothing_of_choices() -> None:
    def picky(request: Received) -> Answer:
        if request.body["messages"][0]["content"] == "bad":
            return 400, {"detail": "too long"}
        return choices(request)

    async with Server({**MODELS, "POST /v1/chat/completions": picky}) as server:
        client = HttpClient(server.url)
        errors = await all_of(client, [ask("bad", sample=number) for number in range(2)])
        await all_of(client, [ask("good", sample=number) for number in range(2)])
        await client.aclose()
    assert [type(error) for error in errors] == [ModelError] * 2
    assert errors[0] is not errors[1]
    assert server.asked("/v1/chat/completions")[-1].body["n"] == 2


async def test_streams_of_several_choices() -> None:
    def stream(request: Received) -> Answer:
        events: list[Any] = [
            {"choices": [{"index": index, "delta": {"content": f"{piece}{index}"}, "finish_reason": finish}]}
            for piece, finish in (("a", None), ("b", "stop"))
            for index in range(request.body["n"])
        ]
        return 200, Events([*events, {"choices": [], "usage": {"completion_tokens": 4}}, b"data: [DONE]\n\n"])

    async with Server({**MODELS, "POST /v1/chat/completions": stream}) as server:
        client = HttpClient(server.url)
        heard: list[list[str]] = [[], []]
        requests = [ask("q", sample=number) for number in range(2)]
        answers = await all_of(client, requests, *(pieces.append for pieces in heard))
        await client.aclose()
    assert answers == [Completion("a0b0", 2, 0, "stop"), Completion("a1b1", 2, 0, "stop")]
    assert heard == [["a0", "b0"], ["a1", "b1"]]


async def test_a_lost_connection_is_the_error_of_all_that_wait() -> None:
    async with hive_server() as server:
        url = server.url
    client = HttpClient(url, attempts=2)
    errors = await all_of(client, [ask("q", sample=number) for number in range(3)])
    await client.aclose()
    assert all("/hive/generate: no connection to 127.0.0.1" in str(error) for error in errors)
    assert len({id(error) for error in errors}) == 3


async def test_a_retry_names_its_requests_anew() -> None:
    names: list[str] = []

    def generate(request: Received) -> Any:
        names.extend(sample["rid"] for sample in request.body["samples"])
        return hive_generate(request) if len(names) > 2 else (503, b"busy")

    async with hive_server(generate) as server:
        client = HttpClient(server.url)
        await all_of(client, [ask("q", sample=number) for number in range(2)])
        await client.aclose()
    # The server may still be busy with the first ones, and refuses a name that is in use.
    assert len(set(names)) == len(names) == 4
