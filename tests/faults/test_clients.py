"""Clients that are killed, and clients that take each other's ids."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from hive.server.server_process import ServerProcess, slowdown
from tests.faults.conftest import settled
from tests.server.replay_client import Ask, ReplayClient

pytestmark = pytest.mark.server

CLIENTS = 16

# Plain sockets: an interpreter with nothing else starts in an instant, also sixteen times on a small machine.
CLIENT = """
import socket, sys
port, path, body = sys.argv[1], sys.argv[2], sys.argv[3].encode()
head = f"POST {path} HTTP/1.1\\r\\nHost: 127.0.0.1:{port}\\r\\nContent-Length: {len(body)}\\r\\n"
head += "Content-Type: application/json\\r\\n\\r\\n"
stream = socket.create_connection(("127.0.0.1", int(port)))
stream.sendall(head.encode() + body)
got = b""
while b"data:" not in got:
    part = stream.recv(4096)
    got += part
    if not part or b" 200 " not in got.split(b"\\r\\n")[0]:
        sys.exit(repr(got))
print("streaming", flush=True)
while stream.recv(4096):
    pass
"""

LONG = {"max_new_tokens": 40, "ignore_eos": True, "temperature": 0.7}


def body_of(number: int) -> tuple[str, dict[str, Any]]:
    """What the clients ask, each in its own way."""
    path = ("/generate", "/generate", "/v1/completions", "/v1/chat/completions")[number % 4]
    tag = {"agent": f"agent-{number % 3}", "session": "killed", "state": f"s{number % 5}", "sample": number}
    if number % 5 == 1:
        tag["replay"] = "distinct"
    rid = f"client-{number}"
    if path == "/generate":
        params = {**LONG, "custom_params": {"hive": tag}, "n": 2 if number % 8 == 0 else 1}
        return path, {"text": "A story:", "sampling_params": params, "stream": True, "rid": rid}
    body = {"model": "any", "max_tokens": 40, "ignore_eos": True, "stream": True, "rid": rid}
    body["custom_params"] = {"hive": tag}
    if path == "/v1/completions":
        return path, {**body, "prompt": "A story:"}
    return path, {**body, "messages": [{"role": "user", "content": "A story."}]}


def wait_until_free(client: ReplayClient, rid: str) -> None:
    """Ask under ``rid`` until the server takes it: the id of a stream stays taken for two seconds after its end."""
    end = time.monotonic() + 10 * slowdown()
    body = {"text": "x", "rid": rid, "sampling_params": {"max_new_tokens": 1}}
    while (answer := client.http.post("/generate", json=body)).status_code != 200:
        assert time.monotonic() < end, f"an id that is never free again is a leak: {answer.text}"
        time.sleep(0.2)


def test_sixteen_clients_killed_in_the_middle_of_their_streams_leave_nothing_behind(
    tight_server: ServerProcess, tight: ReplayClient
) -> None:
    ask = Ask("One is", {"max_new_tokens": 4, "sampling_seed": 1})
    plain = tight.generate(ask, "off")
    clients = []
    for number in range(1, CLIENTS + 1):
        path, body = body_of(number)
        command = [sys.executable, "-S", "-c", CLIENT, str(tight_server.port), path, json.dumps(body)]
        clients.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    # Its id begins as that of the first one.
    neighbour = Ask(
        "Another story:", {**LONG, "max_new_tokens": 24, "sampling_seed": 2}, {"rid": "client-1-b"}
    )
    with ThreadPoolExecutor() as pool:
        beside = pool.submit(tight.generate, neighbour)
        try:
            streaming = [client.stdout.readline() for client in clients[:4] if client.stdout is not None]
        finally:
            for client in clients:
                client.kill()
            for client in clients:
                client.communicate()
        assert streaming == ["streaming\n"] * 4
        # Others are served meanwhile, and get what they always get.
        tight.generate(ask).assert_same(plain)
        assert len(beside.result().ids) == 24
    settled(tight)
    for number in range(1, CLIENTS + 1):
        wait_until_free(tight, f"client-{number}")
    tight.flush()
    tight.generate(ask).assert_same(plain)
    assert settled(tight)["nodes"] > 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_second_request_under_an_id_is_refused_and_the_first_one_goes_on(
    tight: ReplayClient, stream: bool
) -> None:
    params = {**LONG, "max_new_tokens": 24, "sampling_seed": 4}
    first = Ask("Once", params, {"rid": "twice", "stream": True})
    plain = tight.generate(Ask("Once", params), "off")
    with tight.stream("/generate", first.body("off")) as chunks:
        next(chunks)
        for path, rest in (
            ("/generate", {"text": "x", "rid": "twice"}),
            ("/generate", {"text": ["x", "y"], "rid": ["other", "twice"]}),
            ("/v1/completions", {"model": "any", "prompt": "x", "rid": "twice"}),
            (
                "/v1/chat/completions",
                {"model": "any", "messages": [{"role": "user", "content": "x"}], "rid": "twice"},
            ),
        ):
            answer = tight.http.post(path, json={**rest, "stream": stream})
            assert answer.status_code == 400, answer.text
            error = answer.json()["error"]
            assert error["param"] == "rid"
            assert "'twice'" in error["message"]
        # SGLang aborts whoever has the id of a stream two seconds after that has ended.
        for last in chunks:
            ids = last["output_ids"]
    assert ids == plain.ids
    wait_until_free(tight, "twice")
    settled(tight)
