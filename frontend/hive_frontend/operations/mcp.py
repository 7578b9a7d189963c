"""Tools of MCP servers, which start and stop with the run (`hive[mcp]`)."""

from __future__ import annotations

import asyncio
import functools
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from hive_frontend.client.tools import ModelTool
from hive_frontend.errors import HiveError
from hive_frontend.operation import current_environment
from hive_frontend.operations.native import NativeScope
from hive_frontend.operations.tool import tool

if TYPE_CHECKING:
    from mcp import Client

_CONNECT_S = 120.0
"""Seconds within which a server must answer. The command may have to install it first."""
Words = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class McpServer:
    """An MCP server: a command that starts it, or its URL."""

    command: tuple[str, ...]
    url: str | None
    # Not in the `repr`, which journals store: they may contain keys.
    env: Words = field(repr=False)
    headers: Words = field(repr=False)

    async def list_tools(self) -> list[list[Any]]:
        """Return name, description and JSON schema of each tool."""
        client = await self._connected()
        found, cursor = [], None
        while True:
            page = await client.list_tools(cursor=cursor)
            found += [[each.name, each.description or "", each.input_schema] for each in page.tools]
            cursor = page.next_cursor
            if cursor is None:
                return found

    async def call_tool(self, name: str, /, **arguments: Any) -> str:
        """Call a tool, and return its result as text."""
        client = await self._connected()
        result = await client.call_tool(name, arguments)
        # Blocks without text are images and the like, which a tool's result cannot hold.
        texts = [getattr(block, "text", f"[{block.type}]") for block in result.content]
        return f"Error: {' '.join(texts)}" if result.is_error else "\n".join(texts)

    async def open(self, stack: AsyncExitStack) -> Client:
        """Start or reach the server; `stack` ends the connection."""
        from mcp import Client, StdioServerParameters

        if self.url is None:
            command, *args = self.command
            parameters = StdioServerParameters(command=command, args=args, env=dict(self.env) or None)
            return await stack.enter_async_context(Client(parameters))
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        http = await stack.enter_async_context(httpx2.AsyncClient(headers=dict(self.headers), timeout=None))
        return await stack.enter_async_context(Client(streamable_http_client(self.url, http_client=http)))

    async def _connected(self) -> Client:
        """Return the connection of the run, which is made on first use."""
        # A tool always runs in the environment of its transition.
        connections = cast(NativeScope, current_environment()).session.threads.connections
        if self not in connections:
            connections[self] = _Connection(self)
        return await cast(_Connection, connections[self]).client()


class _Connection:
    """A connection to a server, in a task of its own: the SDK's must be begun and ended by the same task."""

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self._client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._end = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    async def client(self) -> Client:
        # Shielded: a cancelled branch must not cancel the connection for the others.
        return await asyncio.shield(self._client)

    async def aclose(self) -> None:
        """End the connection, and a server that was started for it."""
        self._end.set()
        if not self._client.done():
            self._task.cancel()
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.exception()

    async def _run(self) -> None:
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(_CONNECT_S):
                    client = await self._server.open(stack)
            except ImportError as error:
                raise self._failed('mcp_tools needs the MCP SDK: pip install "hive[mcp]"') from error
            except Exception as error:
                raise self._failed(f"no connection to {self._server!r}: {error!r}") from error
            self._client.set_result(client)
            await self._end.wait()

    def _failed(self, why: str) -> HiveError:
        error = HiveError(why)
        self._client.set_exception(error)
        return error


async def mcp_tools(
    *,
    command: str | Sequence[str] | None = None,
    url: str | None = None,
    env: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    only: Sequence[str] | None = None,
    timeout: float | None = None,  # noqa: ASYNC109  # That of later calls.
) -> list[ModelTool]:
    """Return the tools of an MCP server: `await act(task, tools=await mcp_tools(command="uvx mcp-server-time"))`.

    `command` starts a server that is spoken to by standard input and output, with the variables `env` added to its
    environment. `url` is that of a server that is running; `headers` are sent with each request. `only` lists the names
    of the tools to take. `timeout` limits a call in seconds.

    A server starts when it is first needed, and stops at the end of the run. All branches share it.
    """
    if (command is None) == (url is None):
        raise ValueError("mcp_tools takes either command=..., which starts a server, or url=...")
    words = shlex.split(command) if isinstance(command, str) else command or ()
    server = McpServer(tuple(words), url, tuple((env or {}).items()), tuple((headers or {}).items()))
    listed = await tool(server.list_tools, name="mcp_tools")
    names = [name for name, _, _ in listed]
    if missing := [name for name in only or () if name not in names]:
        raise ValueError(
            f"only: {server!r} has no tool {', '.join(map(repr, missing))}; it has {', '.join(names)}"
        )
    return [
        ModelTool(
            functools.partial(server.call_tool, name),
            # MCP allows more characters than models do.
            name=re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64],
            description=description,
            parameters=schema,
            timeout=timeout,
        )
        for name, description, schema in listed
        if only is None or name in only
    ]
