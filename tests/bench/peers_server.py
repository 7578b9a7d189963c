"""A stand-in for an SGLang server with the game's roles: the same question with the same seed, the same answer."""

from __future__ import annotations

import itertools
import json
import random
import re
from fractions import Fraction
from typing import Any

from examples.game24 import prompts
from examples.game24.rules import legal_steps, numbers_of
from tests.frontend.http_server import Answer, Events, Handler, Received, Server


def stand_in() -> Server:
    """A stock server that counts what it is asked, as SGLang does."""
    calls = itertools.count(1)

    def generate(request: Received) -> Answer:
        asked = singles(request.body)
        prefilled.extend(len(body["text"].split()) for body in asked)
        if isinstance(request.body["text"], list):
            answers = [_answer(body, _seed(body)) for body in asked]
            return 200, Events([{**answer, "index": index} for index, answer in enumerate(answers)])
        (body,) = asked
        if number := body["sampling_params"].get("n"):
            return 200, [_answer(body, sample) for sample in range(number)]
        return 200, _answer(body, _seed(body))

    def _seed(body: dict[str, Any]) -> int:
        return body["sampling_params"].get("sampling_seed", next(calls))

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


def singles(body: dict[str, Any]) -> list[dict[str, Any]]:
    """What a request asks for, each as it would be asked for alone: calls of one moment travel as a list."""
    if not isinstance(body["text"], list):
        return [body]
    found = []
    for text, settings, adapter in zip(body["text"], body["sampling_params"], body["lora_path"], strict=True):
        own = {name: value for name, value in settings.items() if name != "stream_interval"}
        found.append({"text": text, "sampling_params": own, "lora_path": adapter})
    return found


def bodies(server: Server) -> list[str]:
    """What was asked so far, in an order that does not depend on when; forgets it."""
    asked = [body for request in server.asked("/generate") for body in singles(request.body)]
    server.received.clear()
    return sorted(json.dumps(body, sort_keys=True) for body in asked)
