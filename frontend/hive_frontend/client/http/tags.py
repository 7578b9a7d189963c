"""The tag and the seed of each request."""

from __future__ import annotations

from typing import Literal, NamedTuple

from hive_frontend.client.contract import Request
from hive_frontend.client.http.behind_router import Affinity, routing_headers
from hive_frontend.client.json_text import Json
from hive_frontend.errors import ModelError
from hive_frontend.wire import Tag, custom_params, sample_seed


class Identity(NamedTuple):
    """The seed of a request, and the fields and headers that carry its tag."""

    seed: int
    fields: Json
    """Fields of the body; empty for servers other than Hive."""
    headers: dict[str, str] | None


class Tags:
    """The tags of one client's requests; `affinity` is None without a router in front of the server."""

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
        """Return the tag of a request."""
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
            # The server remembers the answers of distinct samples permanently. Without its own scope a run would only
            # get answers that earlier runs left over, and a repeated run would get different ones.
            tag["scope"] = request.session
        return tag

    def identity(self, request: Request, is_hive: bool) -> Identity:
        """Return the identity of a request to SGLang's or OpenAI's routes."""
        if not is_hive:
            self.check_replay()
            return Identity(sample_seed(request.seed, request.sample), {}, self._headers(request, {}))
        tag = self.of(request)
        # The server derives the seed of each sample from the base seed, so it can prepare the next one.
        return Identity(request.seed, {"custom_params": custom_params(tag)}, self._headers(request, tag))

    def check_replay(self) -> None:
        """Raise `ModelError` for `replay="distinct"`, which only Hive servers support."""
        if self._replay == "distinct":
            raise ModelError(
                f'{self._url} cannot draw without replacement (replay="distinct"): only a Hive server can. '
                "Start one with python -m hive.launch_server, or leave replay out"
            )

    def _headers(self, request: Request, tag: Tag) -> dict[str, str] | None:
        if self._affinity is None:
            return None
        return routing_headers(request.agent if self._affinity == "agent" else request.session, tag)
