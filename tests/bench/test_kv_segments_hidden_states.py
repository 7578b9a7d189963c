"""Hidden states of a real server, by which quality is measured, against the model in transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
import torch

from bench.kv_segments.distributions import distance, generated_states, head_of, last_states
from bench.kv_segments.encoding import RealText
from bench.kv_segments.town_meeting import readers
from hive.server.embedded_model import ensure_embedded_model
from hive.server.server_process import ServerProcess

OUTPUT = 5


@pytest.mark.long
def test_hidden_states_are_those_behind_the_last_norm(launch_server: Callable[..., ServerProcess]) -> None:
    from transformers import AutoModelForCausalLM

    folder = ensure_embedded_model()
    prompt = readers(0, RealText(folder))[1].prompt
    server = launch_server("--enable-return-hidden-states", "--dtype", "float32", "--no-hive-logits-cache")
    try:
        with httpx.Client(base_url=server.url, timeout=120, trust_env=False) as http:

            def ask(tokens: list[int], count: int) -> dict[str, Any]:
                body = {
                    "input_ids": tokens,
                    "sampling_params": {"max_new_tokens": count, "temperature": 0, "ignore_eos": True},
                    "return_hidden_states": True,
                }
                answer: dict[str, Any] = http.post("/generate", json=body).raise_for_status().json()
                return answer

            whole = ask(prompt, OUTPUT)
            cached = ask([*prompt, 198, 198], 1)["meta_info"]
    finally:
        server.stop()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        ids = torch.tensor([[*prompt, *whole["output_ids"]]])
        states = model.model(ids).last_hidden_state[0]
        logits = model(ids).logits[0]
    meta = whole["meta_info"]
    head = head_of(folder)
    assert len(meta["hidden_states"][0]) == len(prompt)
    for expected, found in (
        (states[: len(prompt)], last_states(meta, len(prompt))),
        (states[len(prompt) - 1 : -1], generated_states(meta, OUTPUT)),
    ):
        assert distance(expected[-OUTPUT:], found[-OUTPUT:], head).logprob_error < 1e-3
        assert float((found - expected).norm() / expected.norm()) < 1e-5
    assert torch.allclose(states[-OUTPUT:] @ head.T, logits[-OUTPUT:], atol=1e-3)
    # Of a prompt whose beginning is cached there is only the rest.
    assert len(cached["hidden_states"][0]) == len(prompt) + 2 - cached["cached_tokens"] < len(prompt)
