"""A stand-in for a server that keeps messages: honest about ids, owners and positions; a token is a character."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.frontend.http_server import Answer, Events, Handler, Received

FIELDS = {
    "/hive/prefill": {"text", "tokens", "parents", "offsets", "new_offset", "id", "lora_path"},
    "/hive/decode": {
        "header",
        "header_tokens",
        "parents",
        "offsets",
        "new_offset",
        "id",
        "lora_path",
        "sampling_params",
        "corrector",
        "stream",
    },
}


class Refused(Exception):
    """A request that gets the status 400."""


@dataclass(frozen=True)
class Kept:
    """A message at the server."""

    text: str
    tenant: str | None
    session: str | None


@dataclass
class Keeper:
    """The messages, and the routes to them."""

    kept: dict[str, Kept] = field(default_factory=dict)
    made: int = 0
    answer: str = "four"
    """What the model says, behind the texts that it saw."""

    def routes(self) -> dict[str, Handler]:
        return {
            "POST /hive/prefill": self.prefill,
            "POST /hive/decode": self.decode,
            "DELETE /hive/messages/*": self.delete,
            "POST /hive/agents": lambda request: (200, {}),
            "GET /hive/agents": lambda request: (200, {}),
            "DELETE /hive/sessions/*": self.end,
        }

    def prefill(self, request: Received) -> Answer:
        return self._answer(request, "text", "tokens")

    def decode(self, request: Received) -> Answer:
        return self._answer(request, "header", "header_tokens")

    def _answer(self, request: Received, in_text: str, in_tokens: str) -> Answer:
        try:
            return 200, self._make(request, in_text, in_tokens)
        except Refused as why:
            return 400, {"error": {"message": str(why), "param": "parents"}}

    def _make(self, request: Received, in_text: str, in_tokens: str) -> Any:
        body, headers = request.body, request.headers
        if unknown := body.keys() - FIELDS[request.path]:
            raise Refused(f"unknown fields: {sorted(unknown)}")
        if (in_text in body) == (in_tokens in body):
            raise Refused(f"exactly one of {in_text} and {in_tokens}")
        begun = body[in_text] if in_text in body else "".join(map(chr, body[in_tokens]))
        tenant = headers.get("x-hive-tenant")
        parents = []
        for id in body.get("parents", []):
            message = self.kept.get(id)
            if message is None or message.tenant != tenant:
                raise Refused(f"parents: unknown id {id!r}")
            parents.append(message.text)
        places = body.get("offsets") or [None] * len(parents)
        if len(places) != len(parents):
            raise Refused("offsets: as many as parents")
        end = 0
        for text, place in zip(parents, places, strict=True):
            end = (end if place is None else place) + len(text)
        offset = end if body.get("new_offset") is None else body["new_offset"]
        written = ""
        if in_text == "header":
            seed = body["sampling_params"]["sampling_seed"]
            written = f" {self.answer} {seed % 1000}"
        self.made += 1
        id = f"kept-{self.made}"
        self.kept[id] = Kept(begun + written, tenant, headers.get("x-hive-session"))
        answer: dict[str, Any] = {
            "id": id,
            "tokens": len(begun + written),
            "offset": offset,
            "end": offset + len(begun + written),
            "kv": {"exact": 1, "placed": sum(map(len, parents)), "recomputed": 0, "missing": 2},
            "meta_info": {"prompt_tokens": len(begun)},
        }
        if in_text == "text":
            return answer
        answer |= {
            "text": written,
            "output_ids": list(map(ord, written)),
            "finish_reason": {"type": "stop", "matched": 2},
            "meta_info": {
                "prompt_tokens": len(begun),
                "cached_tokens": 1,
                "completion_tokens": len(written) + 1,
                "hive": {"tokens_generated": len(written), "tokens_replayed": 1},
            },
        }
        if not body.get("stream"):
            return answer
        pieces = [
            {"text": written[:length], "meta_info": {"completion_tokens": length}}
            for length in range(1, len(written))
        ]
        return Events([*pieces, answer, b"data: [DONE]\n\n"])

    def delete(self, request: Received) -> Answer:
        id = request.path.rpartition("/")[2]
        message = self.kept.get(id)
        if message is None or message.tenant != request.headers.get("x-hive-tenant"):
            return 404, {"error": {"message": f"unknown id {id!r}"}}
        del self.kept[id]
        return 200, {"id": id, "tokens": len(message.text)}

    def end(self, request: Received) -> Answer:
        session = request.path.rpartition("/")[2]
        self.kept = {id: message for id, message in self.kept.items() if message.session != session}
        return 200, {}
