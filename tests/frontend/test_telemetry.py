"""Spans of programs: what is under what, what they say, and what a server is told of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hive_frontend import (
    Completion,
    HttpClient,
    ModelError,
    Session,
    TreeOfThoughts,
    agent,
    decode,
    fail,
    gather,
    gen,
    prefill,
    run,
    score,
    spawn,
    telemetry,
    tool,
)
from hive_frontend.client.contract import Request
from hive_frontend.testing import FunctionModel, ScriptedModel

from tests.frontend.http_server import Answer, Events, Received, Server

sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="needs the SDK: uv pip install 'hive[dev]'")

from opentelemetry import baggage, context, trace  # noqa: E402
from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: E402

SECRET = "the words of a prompt"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """What a program's own provider is given; a process can set one once, so it is put in place by hand."""
    exporter = InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


def named(spans: InMemorySpanExporter, prefix: str) -> list[Any]:
    return [span for span in spans.get_finished_spans() if span.name.startswith(prefix)]


def parent_of(spans: InMemorySpanExporter, span: Any) -> Any:
    found = [
        other
        for other in spans.get_finished_spans()
        if span.parent and other.context.span_id == span.parent.span_id
    ]
    return found[0] if found else None


@agent
async def critic(text: str) -> str:
    return await gen(f"Is this good? {text}", name="judge")


@agent(supervisor=TreeOfThoughts(branch_at="draft", branching=2, breadth=1))
async def writer(topic: str) -> str:
    text = await gen(f"{SECRET} about {topic}", name="draft", temperature=0.5)
    if text == "bad":
        fail(SECRET)
    verdict = await spawn(critic, text)
    score(len(verdict))
    return text


def answer(request: Request) -> str:
    return {"draft": "bad" if request.sample == 1 else "good", "judge": "yes"}[request.name or ""]


@pytest.mark.parametrize("model", [FunctionModel, ScriptedModel])
def test_a_search_is_a_tree_of_spans(spans: InMemorySpanExporter, model: Any) -> None:
    result = run(writer, "rain", model=model(answer), seed=3)
    assert result.value == "good"
    (root,) = named(spans, "invoke_agent writer")
    assert root.parent is None
    tokens = result.totals.tokens_generated
    assert root.attributes == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": "hive",
        "gen_ai.agent.name": "writer",
        "gen_ai.conversation.id": result.session,
        "gen_ai.usage.output_tokens": tokens,
        "hive.seed": "3",
        "hive.supervisor": "TreeOfThoughts",
        "hive.results": 1,
        "hive.dead": 1,
        "hive.states_fired": result.states_fired,
        "hive.requests": 3,
        "hive.tokens_generated": tokens,
        "hive.tokens_replayed": 0,
    }
    assert {span.context.trace_id for span in spans.get_finished_spans()} == {root.context.trace_id}
    (inner,) = named(spans, "invoke_agent critic")
    assert (inner.attributes["hive.results"], inner.attributes["hive.supervisor"]) == (1, "Once")
    drafts = named(spans, "step draft")
    assert [parent_of(spans, step) for step in drafts] == [root, root]
    assert {(step.attributes["gen_ai.agent.name"], step.attributes["hive.firing"]) for step in drafts} == {
        ("writer", 0),
        ("writer", 1),
    }
    spawned = parent_of(spans, inner)
    assert spawned.name.startswith("step ")
    assert parent_of(spans, spawned) is root
    (judged,) = named(spans, "step judge")
    assert parent_of(spans, judged) is inner
    requests = named(spans, "chat")
    assert sorted(span.attributes["hive.name"] for span in requests) == ["draft", "draft", "judge"]
    assert {parent_of(spans, span).name for span in requests} == {"step draft", "step judge"}
    assert all(span.kind is trace.SpanKind.CLIENT for span in requests)
    assert all(
        span.kind is trace.SpanKind.INTERNAL for span in spans.get_finished_spans() if span not in requests
    )
    drawn = [span.attributes for span in requests if span.attributes["hive.name"] == "draft"]
    assert {attributes["hive.sample"] for attributes in drawn} == {0, 1}
    seed = drawn[0]["gen_ai.request.seed"]
    assert drawn[0] == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "custom",
        "gen_ai.agent.name": "writer",
        "gen_ai.conversation.id": result.session,
        "gen_ai.output.type": "text",
        "gen_ai.request.seed": seed,
        "gen_ai.request.max_tokens": 256,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.output_tokens": 1,
        "hive.name": "draft",
        "hive.state": "0",
        "hive.sample": drawn[0]["hive.sample"],
        "hive.tokens_generated": 1,
        "hive.tokens_replayed": 0,
    }


def look_up(word: str) -> str:
    if word == SECRET:
        raise KeyError(word)
    return word


@agent(model="adapter")
async def asks_tools() -> str:
    words = await gather(tool(look_up, "a"), tool(look_up, "b", name="second"))
    with suppress(KeyError):
        await tool(look_up, SECRET)
    decoded = await decode(parents=[await prefill("Once upon")], header="a")
    return await gen("Go on", raw=True, stop=["\n"], top_p=0.9, top_k=5) + words[0] + decoded.text


def test_tools_and_raw_prompts_have_spans(spans: InMemorySpanExporter) -> None:
    run(asks_tools, model=FunctionModel(lambda request: "on"))
    # Spans are listed in the order of their ends, and concurrent tools end in any order.
    tools = sorted(named(spans, "execute_tool"), key=lambda span: span.start_time)
    assert [span.name for span in tools] == [
        "execute_tool look_up",
        "execute_tool second",
        "execute_tool look_up",
    ]
    assert tools[0].attributes == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "look_up",
        "gen_ai.tool.type": "function",
        "gen_ai.agent.name": "asks_tools",
    }
    assert parent_of(spans, tools[0]).name.startswith("step ")
    assert (tools[2].attributes["error.type"], tools[2].status.status_code) == (
        "KeyError",
        trace.StatusCode.ERROR,
    )
    raw = named(spans, "text_completion adapter")
    assert len(raw) == 3
    assert raw[-1].attributes["gen_ai.request.model"] == "adapter"
    assert raw[-1].attributes["gen_ai.request.stop_sequences"] == ("\n",)
    assert SECRET not in "".join(span.to_json() for span in spans.get_finished_spans())


def test_names_are_those_of_the_conventions(spans: InMemorySpanExporter) -> None:
    conventions = pytest.importorskip("opentelemetry.semconv._incubating.attributes.gen_ai_attributes")
    known = {value for name, value in vars(conventions).items() if name.startswith("GEN_AI_")}
    operations = {each.value for each in conventions.GenAiOperationNameValues}
    run(writer, "rain", model=FunctionModel(answer), seed=3)
    run(
        asks_tools, model=FunctionModel(lambda request: Completion("on", 1, prompt_tokens=3, cached_tokens=2))
    )
    used = {name for span in spans.get_finished_spans() for name in span.attributes}
    assert len(used) > 20
    assert {name for name in used if not name.startswith("hive.")} <= known | {"error.type"}
    named_so = {span.attributes.get("gen_ai.operation.name") for span in spans.get_finished_spans()}
    assert named_so - {None} == {"invoke_agent", "execute_tool", "chat", "text_completion"} <= operations


def test_spans_hold_no_words_of_prompts_answers_or_errors(spans: InMemorySpanExporter) -> None:
    def breaks(request: Request) -> str:
        if request.name == "judge":
            raise ModelError(f"the server did not like {SECRET!r}")
        return answer(request)

    with pytest.raises(ModelError):
        run(writer, "rain", model=FunctionModel(breaks), seed=3)
    whole = json.dumps([json.loads(span.to_json()) for span in spans.get_finished_spans()])
    assert SECRET not in whole
    (root,) = named(spans, "invoke_agent writer")
    assert root.status.status_code is trace.StatusCode.ERROR
    assert root.attributes["error.type"] == "ModelError"
    (judged,) = [span for span in named(spans, "chat") if span.attributes["hive.name"] == "judge"]
    assert judged.status.status_code is trace.StatusCode.ERROR


def generate(request: Received) -> Answer:
    meta = {
        "completion_tokens": 2,
        "hive": {"tokens_generated": 1, "tokens_replayed": 1},
        "finish_reason": {"type": "stop"},
    }
    told = {"text": "x", "output_ids": [1, 2], "meta_info": meta}
    return 200, Events([told]) if request.body.get("stream") else told


def render(request: Received) -> Answer:
    return 200, {"text": "x", "kept": 0, "ids": [1], "sampling_params": {}}


HIVE = {
    "POST /hive/agents": lambda request: (200, {}),
    "DELETE /hive/sessions/*": lambda request: (200, {}),
    "POST /hive/render": render,
    "POST /generate": generate,
}


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_request_carries_its_span_to_the_server(spans: InMemorySpanExporter, streamed: bool) -> None:
    pieces: list[Any] = []
    async with Server(HIVE) as server:  # type: ignore[arg-type]
        token = context.attach(baggage.set_baggage("user", "secret"))
        with trace.get_tracer("a program").start_as_current_span("its own span") as own:
            async with Session(
                HttpClient(server.url, attempts=1), on_piece=pieces.append if streamed else None
            ):
                assert await critic("a text") == "x"
        context.detach(token)
    (asked,) = named(spans, "chat")
    assert parent_of(spans, asked).name == "invoke_agent critic"
    sent = server.asked("/generate")[0].headers
    version, trace_id, span_id, flags = sent["traceparent"].split("-")
    assert (version, trace_id, span_id) == (
        "00",
        f"{asked.context.trace_id:032x}",
        f"{asked.context.span_id:016x}",
    )
    assert int(flags, 16) & 1, "the server is to keep its spans, too"
    assert asked.context.trace_id == own.get_span_context().trace_id
    assert "baggage" not in sent
    assert (asked.attributes["hive.tokens_generated"], asked.attributes["hive.tokens_replayed"]) == (1, 1)
    assert asked.attributes["gen_ai.usage.output_tokens"] == 2
    assert asked.attributes["gen_ai.provider.name"] == "hive"
    assert bool(pieces) == streamed


async def test_without_a_provider_there_are_no_spans_and_no_headers() -> None:
    assert not telemetry.active()
    assert telemetry.span("invoke_agent", "x", {}) is telemetry.span("step", "y", {})
    async with Server(HIVE) as server, Session(HttpClient(server.url, attempts=1)):  # type: ignore[arg-type]
        await critic("a text")
    assert all("traceparent" not in request.headers for request in server.received)


def test_the_frontend_works_where_opentelemetry_is_not_installed() -> None:
    code = """
import sys
sys.modules["opentelemetry"] = None
from hive_frontend import telemetry
assert telemetry._otel is None and not telemetry.active() and telemetry.headers() is None
with telemetry.span("step", "x", {"hive.state": "0"}) as span:
    span.set({"hive.state": "1"})
print("fine")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "fine\n"
