"""Live events in the scheduler: which rank publishes, the content, and that failures do not harm the server."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("sglang", reason="needs the server extra: uv pip install 'hive[server]'")

import zmq
from fastapi import FastAPI
from fastapi.testclient import TestClient

from hive.server.agents.registry import AgentRegistry
from hive.server.events.event import AnyEvent, Requests
from hive.server.flags.server_args import HiveServerArgs
from hive.server.ui import page
from sglang_patches.contract.releases import current
from sglang_patches.hooks import auth
from sglang_patches.http import live_routes
from sglang_patches.scheduling import live_events as events
from sglang_patches.scheduling.state import SchedulerState


class Recorder:
    """A publisher that keeps its events."""

    def __init__(self, error: Exception | None = None) -> None:
        self.told: list[list[AnyEvent]] = []
        self.error = error
        self.closed = False

    def due(self) -> bool:
        return True

    def publish(self, told: list[AnyEvent]) -> None:
        if self.error is not None:
            raise self.error
        self.told.append(told)

    def close(self) -> None:
        self.closed = True


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
    ranks = {
        "pp_rank": 0,
        "attn_tp_rank": 0,
        "attn_cp_rank": 0,
        "attn_dp_size": 1,
        "attn_dp_rank": 0,
        "dp_rank": None,
    }
    known = {"hive": state, "running_batch": batch(), "last_batch": None, "waiting_queue": [], **fields}
    return SimpleNamespace(**{**known, "ps": SimpleNamespace(**{**ranks, **fields.get("ps", {})})})


@pytest.fixture
def args(monkeypatch: pytest.MonkeyPatch) -> Iterator[HiveServerArgs]:
    # In later releases ranks are known to the process, and not to the scheduler.
    monkeypatch.setattr(type(current()), "ranks", lambda self, scheduler: scheduler.ps)
    with tempfile.TemporaryDirectory() as folder:
        yield HiveServerArgs(events_endpoint=f"ipc://{folder}/e")


def test_a_request_runs_wherever_it_is_but_in_the_queue() -> None:
    both, new, done = request(), request(), request(finished=True)
    live = events.LiveEvents(told := Recorder())  # type: ignore[arg-type]
    live.tick(
        scheduler(running_batch=batch(both), last_batch=batch(both, new, done), waiting_queue=[request()])
    )
    (found,) = [event for event in told.told[0] if isinstance(event, Requests)]
    assert found == Requests(running=2, queued=1, replaying=2, waiting=1)


def test_an_error_ends_the_events_and_not_the_server(caplog: pytest.LogCaptureFixture) -> None:
    broken = Recorder(ValueError("no picture"))
    live = events.LiveEvents(broken)  # type: ignore[arg-type]
    with caplog.at_level(logging.ERROR):
        live.tick(scheduler())
        live.tick(scheduler())
    assert broken.closed
    assert caplog.text.count("publishing live events failed, so they are now off") == 1


@pytest.mark.parametrize("rank", ["pp_rank", "attn_tp_rank", "attn_cp_rank"])
def test_one_rank_of_a_group_speaks(args: HiveServerArgs, rank: str) -> None:
    assert events.live_events(scheduler(ps={rank: 1}), args) is None
    assert events.live_events(scheduler(), HiveServerArgs(events_endpoint="off")) is None


@pytest.mark.parametrize("ranks", [{"dp_rank": 2}, {"attn_dp_size": 4, "attn_dp_rank": 2}])
def test_data_parallel_ranks_have_addresses_of_their_own(args: HiveServerArgs, ranks: dict[str, int]) -> None:
    made = events.live_events(scheduler(ps=ranks), args)
    assert made is not None
    publisher = made._publisher
    assert publisher is not None
    assert publisher._socket.get_string(zmq.LAST_ENDPOINT) == f"{args.events_endpoint}.2"
    publisher.close()


def client(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> TestClient:
    monkeypatch.setenv("HIVE_SERVER_ARGS", "")
    HiveServerArgs(events_endpoint=endpoint).to_environment()
    app = FastAPI()
    app.include_router(live_routes.router(SimpleNamespace(dp_size=1)))
    return TestClient(app)


def test_the_routes_where_events_are_off(monkeypatch: pytest.MonkeyPatch) -> None:
    http = client(monkeypatch, "off")
    answer = http.get("/hive/events")
    assert answer.status_code == 404
    assert "--hive-events-endpoint off" in answer.text
    shown = http.get(page.PATH)
    assert shown.text == page.content()
    assert shown.headers["content-security-policy"] == page.HEADERS["content-security-policy"]


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
