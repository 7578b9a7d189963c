"""A stand-in for a Hive server with KV segments: a radix tree of whole prompts, messages by their tokens, and hidden
states that say what they were computed from."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

from tests.frontend.http_server import Answer, Events, Received, Server

HIDDEN = 6
VOCABULARY = 40
STATES = 64
"""Of a prompt's end; a server gives those of all tokens that it computed, and nobody looks at them."""


class StandIn:
    """Its state, and the routes on it."""

    def __init__(self) -> None:
        self.ids = itertools.count(1)
        self.messages: dict[str, list[int]] = {}
        self.prompts: dict[str, list[list[int]]] = {}
        """By extra_key."""
        self.ended: list[str] = []
        self.server = Server(
            {
                "POST /hive/prefill": self.prefill,
                "POST /hive/decode": self.decode,
                "POST /generate": self.generate,
                "POST /flush_cache*": self.flush,
                "DELETE /hive/sessions/*": self.end_session,
                "GET /model_info": lambda request: (200, {"model_path": "folder/model"}),
            }
        )

    def prefill(self, request: Received) -> Answer:
        return 200, self._keep(request.body["tokens"], request.body["parents"])

    def decode(self, request: Received) -> Answer:
        if "calls" not in request.body:
            return 200, Events([*self._decoded(request.body), b"data: [DONE]\n\n"])
        calls = [self._decoded(call) for call in request.body["calls"]]
        # The pieces of all calls, in turn.
        pieces = [
            {**piece, "index": index} for turn in zip(*calls, strict=True) for index, piece in enumerate(turn)
        ]
        return 200, Events([*pieces, b"data: [DONE]\n\n"])

    def _decoded(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        generated = _output(body["header_tokens"], body["sampling_params"])
        kept = self._keep([*body["header_tokens"], *generated], body["parents"])
        answer = {
            **kept,
            "text": " ".join(map(str, generated)),
            "output_ids": generated,
            "meta_info": {"finish_reason": {"type": "length"}},
        }
        return [{**answer, "output_ids": generated[:1], "meta_info": {"finish_reason": None}}, answer]

    def _keep(self, tokens: list[int], parents: list[str]) -> dict[str, Any]:
        name = f"m{next(self.ids)}"
        self.messages[name] = tokens
        context = sum(len(self.messages[parent]) for parent in parents)
        kv = {"exact": 0, "placed": context, "recomputed": 0, "missing": 0}
        return {"id": name, "tokens": len(tokens), "offset": context, "end": context + len(tokens), "kv": kv}

    def generate(self, request: Received) -> Answer:
        body = request.body
        prompt, params = body["input_ids"], body["sampling_params"]
        seen = self.prompts.setdefault(body.get("extra_key", ""), [])
        cached = min(max((_common(prompt, other) for other in seen), default=0), len(prompt) - 1)
        output = _output(prompt, params)
        meta: dict[str, Any] = {"cached_tokens": cached, "finish_reason": {"type": "length"}}
        segments = params.get("custom_params", {}).get("hive_segments")
        blurred = 0.0
        if segments is None:
            seen.append([*prompt, *output])
        else:
            placed = sum(span["end"] - span["start"] for span in segments["spans"])
            again = round(placed * _share(segments["corrector"]))
            blurred = 1 - again / placed
            meta["hive"] = {
                "kv": {"exact": cached, "placed": placed - again, "recomputed": again, "missing": 0}
            }
        if body.get("return_hidden_states"):
            states = [
                _state(prompt[: end + 1], blurred)
                for end in range(max(cached, len(prompt) - STATES), len(prompt))
            ]
            drawn = [_state([*prompt, *output[:end]], blurred) for end in range(1, len(output))]
            meta["hidden_states"] = [states, *drawn]
        answer = {"text": " ".join(map(str, output)), "output_ids": output, "meta_info": meta}
        if not body.get("stream"):
            return 200, answer
        begun = {**answer, "output_ids": output[:1], "meta_info": {"finish_reason": None}}
        return 200, Events([begun, answer, b"data: [DONE]\n\n"])

    def flush(self, request: Received) -> Answer:
        self.prompts.clear()
        return 200, {}

    def end_session(self, request: Received) -> Answer:
        self.ended.append(request.path.rpartition("/")[2])
        return 200, {}


def _output(prompt: Sequence[int], params: dict[str, Any]) -> list[int]:
    lottery = random.Random(f"{list(prompt)} {params.get('sampling_seed')}")
    return [lottery.randrange(VOCABULARY) for _ in range(params["max_new_tokens"])]


def _state(tokens: Sequence[int], blurred: float) -> list[float]:
    """Of the last token; blurred ones are off by a share of another state."""
    lottery = random.Random(str(list(tokens)))
    return [lottery.gauss(0, 1) + 0.3 * blurred * lottery.gauss(0, 1) for _ in range(HIDDEN)]


def _share(corrector: str | dict[str, Any]) -> float:
    if isinstance(corrector, dict):
        share: float = corrector["share"]
        return share
    return float(corrector == "recompute-all")


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
