"""Stamps and hints on their way from the HTTP process to the radix cache."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("sglang", reason="needs the server extra: uv pip install 'hive[server]'")

from sglang.srt.managers.io_struct import DumperControlReqInput, msgpack_decode, msgpack_encode
from sglang.srt.managers.schedule_batch import FINISH_ABORT, FINISH_LENGTH, FINISH_MATCHED_TOKEN
from sglang.srt.mem_cache.radix_cache import TreeNode

from hive.server.eviction.hints import Event, Hint
from hive.server.request_tag import RequestError
from sglang_patches.hooks import scheduler as hooks
from sglang_patches.http.arrival import arrived
from sglang_patches.http.chat_ends import ChatEnds
from sglang_patches.http.request_middleware import PARSED
from sglang_patches.requests.request_state import ARRIVAL_KEY
from sglang_patches.scheduling import replay
from sglang_patches.scheduling.control import handle
from sglang_patches.scheduling.hints import hinted
from tests.sglang_patches.test_scheduler import Request, Scheduler


class Tree:
    """What the scheduler tells the radix cache."""

    def __init__(self) -> None:
        self.departures: list[tuple[str, float, Event | None]] = []
        self.hints: list[tuple[str, Hint, float]] = []
        self.discarded: list[TreeNode] = []
        self.ends: list[tuple[str, Event, float]] = []

    def departed(self, req: Request, now: float, event: Event | None) -> None:
        self.departures.append((req.rid, now, event))

    def hint(self, session: str, hint: Hint, now: float) -> None:
        self.hints.append((session, hint, now))

    def observed(self, session: str, event: Event, now: float) -> None:
        self.ends.append((session, event, now))

    def discard(self, node: TreeNode) -> None:
        self.discarded.append(node)

    def end_session(self, session: str) -> None:
        pass


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> Scheduler:
    monkeypatch.setattr(hooks, "bypass_reason", lambda *_args: "asked_off")
    scheduler = Scheduler()
    scheduler.hive.tree = Tree()  # type: ignore[assignment]
    return scheduler


def arrive(
    scheduler: Scheduler, rid: str, at: float | None, *, answers_person: bool = False, **tag: Any
) -> Request:
    req = Request(rid, **tag)
    if at is not None:
        req.sampling_params.custom_params[ARRIVAL_KEY] = {"at": at, "answers_person": answers_person}
    scheduler._add_request_to_queue(req)
    return req


def end(scheduler: Scheduler, req: Request, reason: Any) -> None:
    req.finished_reason = reason
    replay.finish(scheduler, req, ended=not isinstance(reason, FINISH_ABORT))


def observe(scheduler: Scheduler, *ends: dict[str, Any], now: float) -> None:
    """What the HTTP process reports; the message has no response."""
    message = DumperControlReqInput(method="hive:observed", body={"ends": list(ends), "now": now})
    hooks.around_handle_dumper_control(
        lambda *_: pytest.fail("not SGLang's"),
        scheduler,
        msgpack_decode(msgpack_encode(message)),
    )


def test_the_time_of_decisions_is_that_of_the_stamps_and_never_goes_back(scheduler: Scheduler) -> None:
    stamps = (5.0, 4.0, None, 7.5)
    times = [arrive(scheduler, str(n), at).hive.arrived_at for n, at in enumerate(stamps)]  # type: ignore[attr-defined]
    assert times == [5.0, 5.0, 5.0, 7.5]
    observe(scheduler, now=9.0)
    assert scheduler.hive.time == 9.0


@pytest.mark.parametrize(
    ("answers_person", "reason", "event"),
    [
        (True, FINISH_MATCHED_TOKEN(2), "human"),
        (True, FINISH_LENGTH(8), None),
        (True, FINISH_ABORT(), None),
        (False, FINISH_MATCHED_TOKEN(2), None),
    ],
)
def test_a_chat_that_ends_by_itself_waits_for_a_person(
    scheduler: Scheduler, answers_person: bool, reason: Any, event: Event | None
) -> None:
    end(scheduler, arrive(scheduler, "0", 1.0, answers_person=answers_person), reason)
    assert scheduler.hive.tree.departures == [("0", 1.0, event)]  # type: ignore[union-attr]


def test_hints_of_a_request_apply_when_it_has_ended(scheduler: Scheduler) -> None:
    hints = {"session": "s", "expects_event": "tool", "expects_seconds": 3.0}
    req = arrive(scheduler, "0", 1.0, **hints)
    aborted = arrive(scheduler, "1", 2.0, **hints)
    nameless = arrive(scheduler, "2", 2.0, retain=5.0)
    assert not scheduler.hive.tree.hints  # type: ignore[union-attr]
    end(scheduler, req, FINISH_LENGTH(8))
    end(scheduler, aborted, FINISH_ABORT())
    end(scheduler, nameless, FINISH_LENGTH(8))
    assert scheduler.hive.tree.hints == [("s", Hint("tool", 3.0), 2.0)]  # type: ignore[union-attr]


def test_what_was_observed_reaches_the_cache(scheduler: Scheduler) -> None:
    arrive(scheduler, "0", 1.0, session="s", tenant="red")
    observe(scheduler, *({"session": f"{name}s", "event": "tool"} for name in ("red|", "blue|", "")), now=2.0)
    assert scheduler.hive.tree.ends == [("red|s", "tool", 2.0)]  # type: ignore[union-attr]
    assert scheduler.hive.hints == {"tool": 1}


def test_hints_are_about_known_sessions_of_their_tenant(scheduler: Scheduler) -> None:
    arrive(scheduler, "0", 1.0, session="s", tenant="red")
    hints = [{"session": "s", "tenant": tenant, "expects_event": "tool"} for tenant in (None, "blue", "red")]
    assert hinted(scheduler.hive, hints, 2.0) == [False, False, True]
    assert scheduler.hive.tree.hints == [("red|s", Hint("tool"), 2.0)]  # type: ignore[union-attr]


def test_a_client_cannot_stamp_its_request() -> None:
    from hive.server.request_checks.fields import check_custom_params

    with pytest.raises(RequestError, match="must not begin with two underscores"):
        check_custom_params("custom_params", {ARRIVAL_KEY: {"at": 1e9}}, None)  # type: ignore[arg-type]


class Http:
    """A tokenizer manager that keeps what it sends, and a chat with its outputs."""

    def __init__(self, parser: str | None, *, incremental: bool = False) -> None:
        self.sent: list[dict[str, Any]] = []
        self.messages = 0
        self.incremental_streaming_output = incremental
        self.ends = ChatEnds(self)
        chat = SimpleNamespace(tool_call_parser=parser)
        self.app = SimpleNamespace(state=SimpleNamespace(openai_serving_chat=chat))

    def _dispatch_to_scheduler(self, message: DumperControlReqInput) -> None:
        assert message.method == "hive:observed"
        self.messages += 1
        self.sent += message.body["ends"]

    def request(self, path: str = "/v1/chat/completions", body: dict[str, Any] | None = None) -> Any:
        return SimpleNamespace(scope={"path": path, PARSED: body, "app": self.app})

    async def chat(self, *texts: str, reason: str = "stop", stream: bool = False, **params: Any) -> Any:
        """Return what is reported at the end of a chat."""
        _, end = self.ends.observe(self.request(body={"tools": [{}]}))
        assert end is not None
        custom = arrived({"hive": {"session": "s", **params.pop("tag", {})}})
        obj = SimpleNamespace(stream=stream, sampling_params={"custom_params": custom, **params})
        for at, text in enumerate(texts):
            last = at == len(texts) - 1
            meta = {"finish_reason": {"type": reason} if last else None}
            end.saw(obj, {"text": text, "meta_info": meta, "index": 0})
        await asyncio.sleep(0)
        return self.sent


CALL = '<tool_call>\n{"name": "ls", "arguments": {}}\n</tool_call>'


@pytest.mark.parametrize(
    ("parser", "path", "body", "answers_person", "observed"),
    [
        (None, "/v1/chat/completions", {"tools": [{}]}, True, False),
        ("qwen25", "/v1/chat/completions", {}, True, False),
        ("qwen25", "/v1/chat/completions", {"tools": [{}]}, False, True),
        ("qwen25", "/v1/messages", None, False, True),
        ("qwen25", "/generate", {}, False, False),
    ],
)
def test_only_chats_that_may_call_tools_are_observed(
    parser: str | None, path: str, body: dict[str, Any] | None, answers_person: bool, observed: bool
) -> None:
    http = Http(parser)
    answers, end = http.ends.observe(http.request(path, body))
    assert (answers, end is not None) == (answers_person, observed)
    assert http.ends.observe(None) == (False, None)


@pytest.mark.parametrize(
    ("texts", "options", "event"),
    [
        ([CALL], {}, "tool"),
        (["Hello."], {}, "human"),
        ([CALL], {"reason": "length"}, None),
        (['{"a": 1}'], {"json_schema": "{}"}, None),
        ([CALL], {"structural_tag": "{}"}, "tool"),
        ([CALL], {"tag": {"expects": {"event": "subagent"}}}, None),
        (["I", "I see."], {"stream": True}, "human"),
        (["I", f"I {CALL}"], {"stream": True}, "tool"),
    ],
)
async def test_the_end_of_a_chat_is_reported(
    texts: list[str], options: dict[str, Any], event: str | None
) -> None:
    expected = [] if event is None else [{"session": "s", "event": event}]
    assert await Http("qwen25").chat(*texts, **options) == expected


async def test_pieces_of_an_incremental_stream_are_joined() -> None:
    (hint,) = await Http("qwen25", incremental=True).chat(CALL[:4], CALL[4:], stream=True)
    assert hint["event"] == "tool"


async def test_ends_of_one_turn_of_the_event_loop_are_one_message() -> None:
    http = Http("qwen25")
    await asyncio.gather(*(http.chat("Hello.", tag={"tenant": "t"}) for _ in range(3)))
    assert http.sent == [{"session": "t|s", "event": "human"}] * 3
    assert http.messages == 1


def test_answers_are_discarded_by_their_states(scheduler: Scheduler) -> None:
    kept = [TreeNode(), TreeNode()]
    for sample, node in enumerate(kept):
        req = arrive(scheduler, str(sample), 1.0, session="s", state="x", sample=sample)
        req.hive.leaf = node  # type: ignore[attr-defined]
        end(scheduler, req, FINISH_LENGTH(8))
    body = {"session": "s", "state": "x", "sample": 1, "discard": True}
    assert hinted(scheduler.hive, [body, {**body, "session": "t"}], 2.0) == [True, False]
    assert scheduler.hive.tree.discarded == [kept[1]]  # type: ignore[union-attr]
    assert scheduler.hive.tree.hints == []  # type: ignore[union-attr]
    handle(scheduler.hive, "end_session", {"tenant": None, "session": "s"})
    assert len(scheduler.hive.branches) == 0
