"""Merging of concurrent calls into one HTTP request.

Samples of one state, votes, and the calls of states that a search evaluates together are made within one turn of the
event loop. A call waits no longer than that turn, so a single call loses nothing. Calls that differ only in seed and
tag share one prompt in the request. Hive servers take several prompts in one request; others get a request for each.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import secrets
from collections.abc import Awaitable, Callable, Hashable, Sequence

from hive_frontend.client.contract import Completion, OnText, Request
from hive_frontend.client.http.streamed import StreamedText
from hive_frontend.client.http.transport import Transport
from hive_frontend.client.tool_text import uses_tools
from hive_frontend.errors import HiveError, ModelError

_log = logging.getLogger(__name__)

MAX_MERGED = 128
"""Most calls in one request: the limit of OpenAI's servers, and half of the limit of Hive's."""


Serve = Callable[[Sequence["PendingCall"]], Awaitable[None]]
"""Sends one request for several calls, and settles them. An exception is the error of all that are still waiting.
Calls with the same prompt are neighbours."""


class PendingCall:
    """A call in flight."""

    __slots__ = (
        "abandoned",
        "abort",
        "answer",
        "chat",
        "error",
        "prompt_key",
        "refused",
        "request",
        "rid",
        "started",
        "text",
        "together",
        "unchecked",
    )

    def __init__(self, request: Request, on_text: OnText | None) -> None:
        self.request = request
        self.chat = uses_tools(request)
        """Whether only the chat endpoint can answer, because it parses calls of tools."""
        self.text = None if on_text is None else StreamedText(on_text, request.sampling.stop)
        self.answer: asyncio.Future[Completion | None] = asyncio.get_running_loop().create_future()
        """The answer, or None if the call must be sent separately."""
        # The session is part of the key because the tokens of a prompt depend on the answers of the session.
        self.prompt_key: Hashable = (
            request.messages,
            request.prompt,
            request.sampling,
            request.session,
            request.model,
            request.tools,
            self.text is None,
        )
        """What calls that share a prompt in a request have in common: all but seed and tag."""
        self.started = False
        """Whether a piece of the answer was delivered."""
        self.abandoned = False
        """Whether the caller was cancelled."""
        self.refused = False
        """Whether the call was refused in a merged request."""
        self.unchecked = False
        """Whether the server may have ignored the grammar."""
        self.together: list[PendingCall] = []
        """The calls of the request in which this call was merged."""
        self.rid = ""
        """Request id at the server, by which the call can be aborted alone."""
        self.abort: Callable[[PendingCall], Awaitable[None]] | None = None
        """Aborts the call at the server, while others of the same request continue."""
        self.error: ModelError | None = None
        """The error of the last attempt, which counts unless a later attempt succeeds."""

    @property
    def is_waiting(self) -> bool:
        """Whether the caller is still waiting for an answer."""
        return not self.abandoned and not self.answer.done()

    async def alone(self, serve: Serve) -> Completion:
        """Send the call in a request of its own."""
        self.answer = asyncio.get_running_loop().create_future()
        await serve([self])
        done = self.answer.result()
        assert done is not None
        return done

    def settle(self, outcome: Completion | BaseException | None) -> None:
        """Give the outcome to the caller, if it is waiting; None makes it send the call separately."""
        if not self.is_waiting:
            return
        if isinstance(outcome, BaseException):
            self.answer.set_exception(outcome)
        else:
            self.answer.set_result(outcome)


Forming = dict[int, dict[Hashable, list[PendingCall]]]
"""The calls of this turn, by number of attempts and prompt."""


class Merger:
    """Merges the calls that are made in one turn of an event loop.

    `serve` sends a request; `takes_prompts` returns whether one request may have several prompts.
    """

    def __init__(self, transport: Transport, serve: Serve, takes_prompts: Callable[[], bool]) -> None:
        self._transport = transport
        self._serve = serve
        self._takes_prompts = takes_prompts

    async def answer(self, call: PendingCall, attempts: int) -> Completion:
        """Return the answer to a call that is tried `attempts` times."""
        connection = self._transport.connection()
        by_prompt = connection.forming.get(attempts)
        if by_prompt is None:
            by_prompt = connection.forming[attempts] = {}
            asyncio.get_running_loop().call_soon(self._send_turn, connection.forming, attempts)
        by_prompt.setdefault(call.prompt_key, []).append(call)
        try:
            done = await call.answer
        except asyncio.CancelledError:
            call.abandoned = True
            self._leave(call)
            raise
        return await call.alone(self._serve) if done is None else done

    def _send_turn(self, forming: Forming, attempts: int) -> None:
        """Send the calls that were collected in this turn."""
        groups = [calls for group in forming.pop(attempts).values() if (calls := waiting(group))]
        if self._takes_prompts():
            chats = [calls for calls in groups if calls[0].chat]
            others = [call for calls in groups if not calls[0].chat for call in calls]
            groups = [*chats, others] if others else chats
        for group in groups:
            for start in range(0, len(group), MAX_MERGED):
                self._send(group[start : start + MAX_MERGED])

    def _send(self, calls: list[PendingCall]) -> None:
        if len(calls) == 1:
            calls[0].settle(None)
            return
        for call in calls:
            call.together = calls
        self._transport.connection().start(id(calls), asyncio.ensure_future(self._run(calls)))

    async def _run(self, group: list[PendingCall]) -> None:
        try:
            await self._serve(group)
        except asyncio.CancelledError:
            for call in group:
                call.answer.cancel()
            raise
        except Exception as error:
            for call in group:
                call.settle(copy_error(error))

    def _leave(self, call: PendingCall) -> None:
        connection = self._transport.connection()
        task = connection.tasks.get(id(call.together))
        if task is None:
            return
        if not any(other.is_waiting for other in call.together):
            # This closes the connection, which aborts all calls of the request at the server.
            task.cancel()
        elif call.abort is not None:
            connection.start(call.rid, asyncio.ensure_future(try_abort(call.abort(call))))


async def try_abort(abort: Awaitable[None]) -> None:
    """Await an abort, which may fail: the call is over for the client in any case."""
    try:
        await abort
    except HiveError:
        # The server then only wastes the work on this answer.
        _log.debug("a cancelled call could not be aborted at the server", exc_info=True)


def copy_error(error: Exception) -> Exception:
    """Return a copy of `error` for one of several callers, because errors collect tracebacks."""
    if not isinstance(error, HiveError):
        return error
    copied = copy.copy(error)
    copied.__cause__ = error.__cause__
    return copied


def next_attempt(
    calls: Sequence[PendingCall], abort: Callable[[PendingCall], Awaitable[None]]
) -> list[PendingCall]:
    """Return the calls that are still waiting, with new request ids: the server may still be working on the last
    attempt, and refuses an id that is in use. `abort` aborts one of them at the server."""
    calls = waiting(calls)
    name = secrets.token_hex(8) if len(calls) > 1 else ""
    for number, call in enumerate(calls):
        # All of the same length: SGLang aborts all requests whose id begins with the given one.
        call.rid = name and f"{name}-{number:03d}"
        call.abort = abort if name else None
    return calls


def waiting(calls: Sequence[PendingCall]) -> list[PendingCall]:
    """Return the calls that are still waiting for an answer."""
    return [call for call in calls if call.is_waiting]


def fail_started(calls: Sequence[PendingCall], error: ModelError) -> bool:
    """Fail the calls of which a piece was delivered, and so cannot be retried. Return whether any calls are left."""
    for call in calls:
        if call.started:
            call.settle(copy_error(error))
    return bool(waiting(calls))
