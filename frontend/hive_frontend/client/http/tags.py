"""What servers are told of a request beside its prompt: who sends it, for which state, and its seed."""

from __future__ import annotations

from typing import Literal, NamedTuple

from hive_frontend.client.contract import Request
from hive_frontend.client.http.behind_router import Affinity, routing_headers
from hive_frontend.client.json_text import Json
from hive_frontend.errors import ModelError
from hive_frontend.wire import Tag, custom_params, sample_seed


class Identity(NamedTuple):
    """What a request says of itself."""

    seed: int
    fields: Json
    """Of the body; empty for servers that would not know them."""
    headers: dict[str, str] | None


class Tags:
    """The tags of one client's requests; `affinity` is None where no router stands before the server."""

    def __init__(
        self,
        url: str,
        replay: Literal["stepwise", "distinct", "off"],
        tenant: str | None,
        affinity: Affinity | None,
    ) -> None:
        self._url = url
        self._replay = replay
        self._tenant = tenant
        self._affinity = affinity

    def of(self, request: Request) -> Tag:
        """What a Hive server is told of a request."""
        tag: Tag = {
            "agent": request.agent,
            "session": request.session,
            "state": request.state,
            "sample": request.sample,
            "replay": self._replay,
        }
        if self._tenant is not None:
            tag["tenant"] = self._tenant
        if self._replay == "distinct":
            # The server remembers for good what distinct samples of a prompt took: without a scope of its own, a run
            # would get what earlier ones left over, and the same run another time other answers.
            tag["scope"] = request.session
        return tag

    def identity(self, request: Request, is_hive: bool) -> Identity:
        """The same for requests to other routes than Hive's own, and to other servers."""
        if not is_hive:
            self.check_replay()
            return Identity(sample_seed(request.seed, request.sample), {}, self._headers(request, {}))
        tag = self.of(request)
        # The server derives the seed of each sample from the base seed, and so may prepare the next one.
        return Identity(request.seed, {"custom_params": custom_params(tag)}, self._headers(request, tag))

    def check_replay(self) -> None:
        """`ModelError` if a server that is not Hive's is to do what only Hive's can."""
        if self._replay == "distinct":
            raise ModelError(
                f'{self._url} cannot draw without replacement, as replay="distinct" asks: only Hive\'s server can. '
                "Start one with python -m hive.launch_server, or leave replay out"
            )

    def _headers(self, request: Request, tag: Tag) -> dict[str, str] | None:
        if self._affinity is None:
            return None
        return routing_headers(request.agent if self._affinity == "agent" else request.session, tag)
