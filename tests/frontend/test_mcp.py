"""Tools of real MCP servers, over standard input and output and over HTTP."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hive_frontend import (
    BestOfN,
    HiveError,
    Request,
    Session,
    TreeOfThoughts,
    act,
    agent,
    arun,
    mcp_tools,
    run,
)
from hive_frontend.testing import Answer, FunctionModel, ScriptedModel, call

pytest.importorskip("mcp")

SERVER = '''
import os, sys
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("shop")
sold = []

@server.tool()
def sell(what: str, count: int = 1) -> str:
    """Sell something."""
    if count > 9:
        raise ToolError("too many")
    sold.append(what)
    return f"{os.environ.get('SHOP', 'shop')}: sold {what}, {len(sold)} in all"

@server.tool(name="stock.take")
def stock() -> list[str]:
    """What was sold."""
    return sold

with open(sys.argv[1], "a") as log:
    log.write(f"{os.getpid()}\\n")
if len(sys.argv) > 2:
    server.run(transport="streamable-http", port=int(sys.argv[2]))
else:
    server.run()
'''


@pytest.fixture
def shop(tmp_path: Path) -> list[str]:
    """The command of a server, which notes its process."""
    program = tmp_path / "shop.py"
    program.write_text(SERVER)
    return [sys.executable, str(program), str(tmp_path / "log")]


def started(shop: list[str]) -> list[int]:
    log = Path(shop[2])
    return [int(line) for line in log.read_text().split()] if log.exists() else []


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@agent
async def seller(server: dict[str, Any]) -> str:
    return await act("Sell tea.", tools=await mcp_tools(**server))


async def test_a_server_starts_and_stops_with_the_run(shop: list[str]) -> None:
    script: list[Answer] = [
        [call("sell", what="tea", count=2), call("sell", what="tea", count=10)],
        call("stock_take"),
        "Sold.",
    ]
    model = ScriptedModel(script)
    result = await arun(seller, {"command": shop, "env": {"SHOP": "corner"}}, model=model)
    assert result.value == "Sold."
    nodes = [node for node in result.tree.nodes if node.results]
    assert nodes[0].results[0] == "corner: sold tea, 1 in all"
    assert nodes[0].results[1].startswith("Error: ")
    assert "too many" in nodes[0].results[1]
    assert nodes[1].results == ["tea"]
    tools = model.calls[0].tools
    assert tools is not None
    assert [each.name for each in tools.schemas] == ["sell", "stock_take"]
    assert tools.schemas[0].description == "Sell something."
    assert '"required": ["what"]' in tools.schemas[0].parameters
    (process,) = started(shop)
    assert not is_running(process)
    async with Session(ScriptedModel(script)):
        assert await seller({"command": shop}) == "Sold."
    assert len(started(shop)) == 2


def test_branches_share_a_server_and_a_resumed_run_does_not_call_it_again(
    shop: list[str], tmp_path: Path
) -> None:
    def model(request: Request) -> Answer:
        done = any(message.role == "tool" for message in request.messages)
        return "Sold." if done else call("sell", what=f"tea {request.sample}")

    search = TreeOfThoughts(branch_at="act", branching=2, limit=None)
    checkpoint = tmp_path / "j"
    result = run(
        seller,
        {"command": shop},
        model=FunctionModel(model),
        supervisor=search,
        checkpoint=checkpoint,
        seed=1,
    )
    sold = sorted(each for node in result.tree.nodes for each in node.results)
    assert [each.rpartition(", ")[0] for each in sold] == ["shop: sold tea 0", "shop: sold tea 1"]
    assert {each.rpartition(", ")[2] for each in sold} == {"1 in all", "2 in all"}
    assert len(started(shop)) == 1
    assert run(seller, {"command": shop}, replay=checkpoint, supervisor=search).tree == result.tree
    assert len(started(shop)) == 1


@pytest.fixture
def shop_url(shop: list[str]) -> Iterator[str]:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    process = subprocess.Popen([*shop, str(port)], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.05)
    yield f"http://127.0.0.1:{port}/mcp"
    process.terminate()
    process.wait()


def test_a_server_is_reached_by_its_url(shop_url: str) -> None:
    server = {"url": shop_url, "headers": {"X-Key": "secret"}, "only": ["sell"]}
    model = ScriptedModel([call("sell", what="tea"), "Sold."] * 2)
    result = run(seller, server, model=model, supervisor=BestOfN(1))
    assert [node.results for node in result.tree.nodes if node.results] == [["shop: sold tea, 1 in all"]]
    tools = model.calls[0].tools
    assert tools is not None
    assert [each.name for each in tools.schemas] == ["sell"]


@pytest.mark.parametrize(
    ("server", "error", "message"),
    [
        ({}, ValueError, "either command=..., which starts a server, or url="),
        ({"command": "a", "url": "http://b"}, ValueError, "either command="),
        (
            {"command": "no-such-program --here"},
            HiveError,
            r"no connection to McpServer\(command=\('no-such-pro",
        ),
    ],
)
def test_bad_servers_say_what_is_wrong(server: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        run(seller, server, model=ScriptedModel([]))


def test_tools_that_a_server_does_not_have_are_named(shop: list[str]) -> None:
    with pytest.raises(ValueError, match=r"has no tool 'buy'; it has sell, stock.take"):
        run(seller, {"command": shop, "only": ["buy"]}, model=ScriptedModel([]))
    (process,) = started(shop)
    assert not is_running(process)


def test_the_sdk_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(HiveError, match=r'mcp_tools needs the MCP SDK: pip install "hive\[mcp\]"'):
        run(seller, {"command": "x"}, model=ScriptedModel([]))
