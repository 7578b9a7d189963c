"""Calls that ask for the same in the same moment, put together so that they can travel as one request.

Samples of one state, votes and other calls with one prompt come within one turn of the event loop. Nobody waits longer
than that turn, so a call that is alone loses nothing.
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
from hive_frontend.errors import HiveError, ModelError

_log = logging.getLogger(__name__)

MOST = 128
"""Calls that travel together: what OpenAI's servers take, and half of what Hive's take."""


Serve = Callable[[Sequence["Ask"]], Awaitable[None]]
"""Sends one request for several asks, and settles them. What it raises is the error of all that still wait."""


class Ask:
    """A call under way."""

    __slots__ = (
        "begun",
        "error",
        "give_up",
        "gone",
        "refused",
        "request",
        "rid",
        "text",
        "turn",
        "unchecked",
    )

    def __init__(self, request: Request, on_text: OnText | None) -> None:
        self.request = request
        self.text = None if on_text is None else StreamedText(on_text, request.sampling.stop)
        self.turn: asyncio.Future[Completion | None] = asyncio.get_running_loop().create_future()
        """Ends with the answer, or with None: then the call is to be made alone."""
        self.begun = False
        """Whether a piece of the answer was handed on."""
        self.gone = False
        """Whether nobody waits any more."""
        self.refused = False
        """Whether the call was refused when it travelled with others."""
        self.unchecked = False
        """Whether the server may not have kept to the grammar."""
        self.rid = ""
        """Name of the request at the server, by which it can be given up alone."""
        self.give_up: Callable[[Ask], Awaitable[None]] | None = None
        """Tells the server that nobody waits any more, while others of the same request go on."""
        self.error: ModelError | None = None
        """Why there is no answer, if a later attempt does not bring one."""

    @property
    def waits(self) -> bool:
        """Whether an answer is still wanted."""
        return not self.gone and not self.turn.done()

    async def alone(self, serve: Serve) -> Completion:
        """Make the call by itself."""
        self.turn = asyncio.get_running_loop().create_future()
        await serve([self])
        done = self.turn.result()
        assert done is not None
        return done

    def settle(self, outcome: Completion | BaseException | None) -> None:
        """Wake the caller, if it waits; None has it make the call alone."""
        if not self.waits:
            return
        if isinstance(outcome, BaseException):
            self.turn.set_exception(outcome)
        else:
            self.turn.set_result(outcome)


class Merger:
    """Collects the asks of an event loop."""

    def __init__(self, transport: Transport, serve: Serve) -> None:
        self._transport = transport
        self._serve = serve

    async def ask(self, ask: Ask, attempts: int) -> Completion:
        """The answer to a call that is tried `attempts` times."""
        request = ask.request
        # What a request says once for all its samples. Sessions have prompts of their own: each knows what was written
        # to it before.
        key = (
            request.messages,
            request.prompt,
            request.sampling,
            request.session,
            request.model,
            attempts,
            ask.text is None,
        )
        connection = self._transport.connection()
        group = connection.forming.get(key)
        if group is None or len(group) >= MOST:
            group = connection.forming[key] = []
            asyncio.get_running_loop().call_soon(self._go, connection.forming, key, group)
        group.append(ask)
        try:
            done = await ask.turn
        except asyncio.CancelledError:
            ask.gone = True
            self._leave(group, ask)
            raise
        return await ask.alone(self._serve) if done is None else done

    def _go(self, forming: dict[Hashable, list[Ask]], key: Hashable, group: list[Ask]) -> None:
        """The turn is over: send what has come together."""
        if forming.get(key) is group:
            del forming[key]
        group[:] = [ask for ask in group if ask.waits]
        if len(group) == 1:
            group[0].settle(None)
        elif group:
            connection = self._transport.connection()
            connection.start(id(group), asyncio.ensure_future(self._run(group)))

    async def _run(self, group: list[Ask]) -> None:
        try:
            await self._serve(group)
        except asyncio.CancelledError:
            for ask in group:
                ask.turn.cancel()
            raise
        except Exception as error:
            for ask in group:
                ask.settle(own(error))

    def _leave(self, group: list[Ask], ask: Ask) -> None:
        connection = self._transport.connection()
        task = connection.tasks.get(id(group))
        if task is None:
            return
        if not any(other.waits for other in group):
            # This closes the connection, which ends all of them at the server.
            task.cancel()
        elif ask.give_up is not None:
            connection.start(ask.rid, asyncio.ensure_future(_told(ask.give_up(ask))))


async def _told(telling: Awaitable[None]) -> None:
    try:
        await telling
    except HiveError:
        # Then the server computes an answer that nobody reads.
        _log.debug("the server could not be told that a call was given up", exc_info=True)


def own(error: Exception) -> Exception:
    """`error` for one of several callers: errors collect tracebacks, so each caller gets one of its own."""
    if not isinstance(error, HiveError):
        return error
    copied = copy.copy(error)
    copied.__cause__ = error.__cause__
    return copied


def next_attempt(asks: Sequence[Ask], give_up: Callable[[Ask], Awaitable[None]]) -> list[Ask]:
    """Those that still want an answer, with names for this attempt: a server may not have noticed yet that the last
    one is lost, and takes no name twice. `give_up` tells it of one that leaves."""
    asks = waiting(asks)
    name = secrets.token_hex(8) if len(asks) > 1 else ""
    for number, ask in enumerate(asks):
        # Of one length: SGLang takes a name for all that begin with it.
        ask.rid = name and f"{name}-{number:03d}"
        ask.give_up = give_up if name else None
    return asks


def waiting(asks: Sequence[Ask]) -> list[Ask]:
    """Those that still want an answer."""
    return [ask for ask in asks if ask.waits]


def give_up_begun(asks: Sequence[Ask], error: ModelError) -> bool:
    """Settle those whose text has begun, for which nothing can be tried again; whether any are left."""
    for ask in asks:
        if ask.begun:
            ask.settle(own(error))
    return bool(waiting(asks))
