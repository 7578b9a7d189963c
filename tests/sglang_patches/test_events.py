"""Live events in the scheduler: what they report, and that their failures harm nothing."""

from __future__ import annotations

import asyncio
import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("sglang", reason="needs the server extra: uv pip install 'hive[server]'")

import msgspec
from fastapi import FastAPI
from fastapi.testclient import TestClient

from hive.server.agents.registry import AgentRegistry
from hive.server.events.event import AnyEvent, Requests
from hive.server.ui import page
from sglang_patches.hooks import auth
from sglang_patches.http import live_routes
from sglang_patches.scheduling import live_events as events
from sglang_patches.scheduling.state import SchedulerState


def batch(*reqs: Any) -> Any:
    return SimpleNamespace(reqs=list(reqs))


def request(finished: bool = False) -> Any:
    return SimpleNamespace(finished=lambda: finished)


def replaying(awaits: bytes | None = None) -> Any:
    return SimpleNamespace(hive=SimpleNamespace(cached=SimpleNamespace(awaits=awaits)))


def scheduler(**fields: Any) -> Any:
    state = SchedulerState(
        AgentRegistry(8), None, None, None, False, [replaying(), replaying(awaits=b"row")], []
    )
    known = {"hive": state, "running_batch": batch(), "last_batch": None, "waiting_queue": [], **fields}
    return SimpleNamespace(**known)


def test_a_request_runs_wherever_it_is_but_in_the_queue() -> None:
    both, new, done = request(), request(), request(finished=True)
    told = events.LiveEvents().snapshot(
        scheduler(running_batch=batch(both), last_batch=batch(both, new, done), waiting_queue=[request()])
    )
    (found,) = [event for event in told if isinstance(event, Requests)]
    assert found == Requests(running=2, queued=1, replaying=2, waiting=1)


def test_a_snapshot_survives_the_wire() -> None:
    live, engine = events.LiveEvents(), scheduler()
    engine.hive.agents.arrived("writer", "run", 12)
    live.sessions.arrived("run", "writer", "0.1")
    sent = json.loads(json.dumps(live.on_wire(engine)))
    assert msgspec.convert(sent, list[AnyEvent]) == live.snapshot(engine)
    assert {event["event"] for event in sent} == {"agents", "scores", "requests", "sessions"}


def test_an_error_ends_the_events_and_not_the_server(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        live = events.LiveEvents()
        assert live.on_wire(scheduler(waiting_queue=None)) == []
        assert live.on_wire(scheduler(waiting_queue=None)) == []
    assert caplog.text.count("live events failed and are now off; requests are still served") == 1


def test_the_routes_ask_every_rank() -> None:
    asked = []

    async def dumper_control(message: Any) -> list[Any]:
        asked.append(message.method)
        rank = events.LiveEvents().on_wire(scheduler())
        return [SimpleNamespace(response=[{"events": rank}]), SimpleNamespace(response=[{"events": rank}])]

    app = FastAPI()
    app.router.routes.extend(live_routes.router(SimpleNamespace(dumper_control=dumper_control)).routes)
    shown = TestClient(app).get(page.PATH)
    assert shown.text == page.content()
    assert shown.headers["content-security-policy"] == page.HEADERS["content-security-policy"]

    async def first_events() -> bytes:
        (endpoint,) = [route.endpoint for route in app.routes if getattr(route, "path", "") == "/hive/events"]
        stream = await endpoint()
        async with asyncio.timeout(10):
            async for chunk in stream._frames:
                if b"event: requests" in chunk:
                    await stream._hub.leave()
                    return bytes(chunk)
        raise AssertionError("the stream has ended")

    assert b'"replaying":4' in asyncio.run(first_events())
    assert asked == ["hive:events"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/hive/ui", True),
        ("HEAD", "/hive/ui", True),
        ("POST", "/hive/ui", False),
        ("GET", "/hive/events", False),
    ],
)
def test_only_the_page_needs_no_key(method: str, path: str, allowed: bool) -> None:
    from sglang.srt.utils.auth import AuthLevel, decide_request_auth

    decision = auth.around_decide_request_auth(
        decide_request_auth,
        method=method,
        path=path,
        authorization_header=None,
        api_key="key",
        admin_api_key=None,
        auth_level=AuthLevel.NORMAL,
    )
    assert decision.allowed is allowed


def test_a_stopping_server_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Server:
        should_exit = False

        def handle_exit(self, *_: Any) -> None:
            self.should_exit = True

    server = Server()
    monkeypatch.setattr(live_routes.signal, "getsignal", lambda number: server.handle_exit)
    assert not live_routes._stopping()
    server.handle_exit()
    assert live_routes._stopping()
