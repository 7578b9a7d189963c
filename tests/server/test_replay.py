"""The Logits Cache on the real server with the real small model, in float32, one request at a time.

Sequentially in float32 the output with the cache must be token for token the output without it.
"""

from __future__ import annotations

from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.server

KEY = "sesame"
PROMPTS = ["The capital of France is", "Once upon a time there was a", "2 + 2 ="]


@pytest.fixture(scope="module")
def exact(launch_server: Any) -> Any:
    """A server in float32, guarded by a key."""
    server = launch_server("--dtype", "float32", "--api-key", KEY)
    with httpx.Client(base_url=server.url, timeout=120, headers={"Authorization": f"Bearer {KEY}"}) as client:
        yield client
    server.stop()


def ask(
    client: httpx.Client,
    text: str,
    replay: str = "stepwise",
    tag: dict[str, Any] | None = None,
    **params: Any,
) -> Any:
    hive = {"replay": replay, **(tag or {})}
    params = {"max_new_tokens": 16, "temperature": 0.7, "custom_params": {"hive": hive}, **params}
    answer = client.post("/generate", json={"text": text, "sampling_params": params})
    assert answer.status_code == 200, answer.text
    return answer.json()


RULES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "cool": {"temperature": 0.3},
    "warm": {"temperature": 1.0},
    "top_k": {"temperature": 0.9, "top_k": 20},
    "top_p": {"temperature": 0.9, "top_p": 0.8},
    "min_p": {"temperature": 0.9, "min_p": 0.1},
    "stop": {"temperature": 0.5, "stop": ["\n", "."]},
    "regex": {"temperature": 0.9, "regex": "[A-Z][a-z]{2,8}( [a-z]{2,8}){2,5}\\."},
    "json_schema": {
        "temperature": 0.7,
        "json_schema": '{"type":"object","properties":{"city":{"type":"string","maxLength":12}},"required":["city"]}',
    },
}


@pytest.mark.parametrize("name", RULES)
def test_outputs_with_and_without_the_cache_are_the_same(exact: httpx.Client, name: str) -> None:
    replayed = 0
    for seed in (1, 2, 3, 1):
        plain = ask(exact, PROMPTS[0], "off", sampling_seed=seed, **RULES[name])
        cached = ask(exact, PROMPTS[0], sampling_seed=seed, **RULES[name])
        assert cached["output_ids"] == plain["output_ids"]
        assert cached["text"] == plain["text"]
        assert cached["meta_info"]["finish_reason"] == plain["meta_info"]["finish_reason"]
        assert plain["meta_info"]["hive"]["tokens_replayed"] == 0
        replayed += cached["meta_info"]["hive"]["tokens_replayed"]
    assert replayed > 0


def test_a_prompt_that_ends_inside_an_earlier_output_is_a_known_state(exact: httpx.Client) -> None:
    first = ask(exact, PROMPTS[2], sampling_seed=5)
    tokens = exact.post("/tokenize", json={"model": "any", "prompt": PROMPTS[2]}).json()["tokens"]
    longer = tokens + first["output_ids"][:4]
    params = {"max_new_tokens": 8, "temperature": 0.7, "sampling_seed": 5}
    again = exact.post("/generate", json={"input_ids": longer, "sampling_params": params}).json()
    assert again["output_ids"] == first["output_ids"][4:12]
    assert again["meta_info"]["hive"]["tokens_replayed"] == 8


def test_a_seed_without_deterministic_inference_repeats(exact: httpx.Client) -> None:
    one, two = (ask(exact, PROMPTS[0], "off", sampling_seed=9, temperature=1.0) for _ in range(2))
    assert one["output_ids"] == two["output_ids"]


def test_requests_without_a_seed_differ_and_samples_of_a_state_repeat(exact: httpx.Client) -> None:
    unseeded = {tuple(ask(exact, PROMPTS[1], temperature=1.0)["output_ids"]) for _ in range(4)}
    assert len(unseeded) == 4
    tags = [{"session": "s", "state": "root", "sample": sample} for sample in (0, 1, 0)]
    samples = [ask(exact, PROMPTS[1], tag=tag, temperature=1.0)["output_ids"] for tag in tags]
    assert samples[0] == samples[2] != samples[1]


def test_tenants_share_no_rows(exact: httpx.Client) -> None:
    text = "A prompt that only this test sends"
    for tenant, replayed in (("a", 0), ("a", 16), ("b", 0)):
        done = ask(exact, text, tag={"tenant": tenant}, sampling_seed=4, ignore_eos=True)["meta_info"]["hive"]
        assert done["tokens_replayed"] == replayed


def test_features_outside_the_first_cut_are_bypassed_and_counted(exact: httpx.Client) -> None:
    def bypassed() -> dict[str, int]:
        counts: dict[str, int] = exact.get("/hive/stats").json()["logits_cache"]["bypassed"]
        return counts

    before = bypassed()
    ask(exact, PROMPTS[0], frequency_penalty=0.5)
    ask(exact, PROMPTS[0], logit_bias={"5": 1.0})
    after = bypassed()
    assert after["penalties"] == before.get("penalties", 0) + 1
    assert after["logit_bias"] == before.get("logit_bias", 0) + 1


def test_a_flush_empties_the_cache(exact: httpx.Client) -> None:
    ask(exact, PROMPTS[0], sampling_seed=1)
    assert exact.get("/hive/stats").json()["logits_cache"]["nodes"] > 0
    assert exact.post("/flush_cache").status_code == 200
    assert exact.get("/hive/stats").json()["logits_cache"]["nodes"] == 0


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/hive/stats"),
        ("GET", "/hive/agents"),
        ("POST", "/hive/agents"),
        ("DELETE", "/hive/sessions/x"),
    ],
)
def test_the_api_key_guards_the_routes(exact: httpx.Client, method: str, path: str) -> None:
    answer = exact.request(method, path, headers={"Authorization": "Bearer wrong"}, json={"name": "x"})
    assert answer.status_code == 401
