"""A stand-in for an SGLang server with the game's roles: the same question with the same seed, the same answer."""

from __future__ import annotations

import itertools
import json
import random
import re
from fractions import Fraction
from typing import Any

from bench.game24 import prompts
from bench.game24.rules import legal_steps, numbers_of
from tests.frontend.http_server import Answer, Handler, Received, Server


def stand_in() -> Server:
    """A stock server that counts what it is asked, as SGLang does."""
    calls = itertools.count(1)

    def generate(request: Received) -> Answer:
        prefilled.append(len(request.body["text"].split()))
        settings = request.body["sampling_params"]
        if "n" in settings:
            return 200, [_answer(request.body, number) for number in range(settings["n"])]
        return 200, _answer(request.body, settings.get("sampling_seed", next(calls)))

    def metrics(request: Received) -> Answer:
        text = f'sglang:realtime_tokens_total{{mode="prefill_compute",tp_rank="0"}} {sum(prefilled)}.0\n'
        return 200, text.encode()

    prefilled: list[int] = []
    routes: dict[str, Handler] = {
        "GET /v1/models": lambda request: (200, {"data": _MODELS}),
        "POST /generate": generate,
        "POST /flush_cache*": lambda request: (200, {}),
        "GET /metrics": metrics,
        "GET /server_info": lambda request: (200, _INFO),
    }
    return Server(routes)


_INFO = {
    "speculative_num_draft_tokens": None,
    "internal_states": [{"memory_usage": {"weight": 0.25, "kvcache": 0.5, "graph": {"decode": 0.125}}}],
}
_MODELS = [
    {"id": "model", "owned_by": "sglang", "parent": None},
    *({"id": role, "owned_by": "sglang", "parent": "model"} for role in ("proposer", "valuer")),
]


def _answer(body: dict[str, Any], seed: int) -> dict[str, Any]:
    lottery = random.Random(f"{body['text']}|{seed}")
    if body["lora_path"] == "valuer":
        text = lottery.choice(list(prompts.WORTH))
    else:
        numbers = numbers_of(map(Fraction, re.findall(r"[\d/]+", body["text"])))
        text = f"{lottery.choice(legal_steps(numbers))} "
    return {"text": text, "meta_info": {"completion_tokens": 3, "finish_reason": {"type": "stop"}}}


def bodies(server: Server) -> list[str]:
    """What was asked so far, in an order that does not depend on when; forgets it."""
    asked = sorted(json.dumps(request.body, sort_keys=True) for request in server.asked("/generate"))
    server.received.clear()
    return asked
