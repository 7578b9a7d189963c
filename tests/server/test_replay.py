"""The Logits Cache on the real server with the real small model, in float32, one request at a time.

Sequentially in float32 the output with the cache must be token for token the output without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.repetitions import repetitions
from tests.server.replay_client import FORBIDDEN, PROMPTS, Ask, ReplayClient

pytestmark = pytest.mark.server

JSON_SCHEMA = (
    '{"type":"object","properties":{"city":{"type":"string","maxLength":8}},"required":["city"],'
    '"additionalProperties":false}'
)
GRAMMARS: list[dict[str, str]] = [
    {"regex": "[A-Z][a-z]{2,8}( [a-z]{2,8}){2,5}\\."},
    {"ebnf": 'root ::= item ("," item)*\nitem ::= " "? [a-z]+'},
    {"json_schema": JSON_SCHEMA},
]
PENALTIES = {"frequency_penalty", "presence_penalty", "repetition_penalty"}
RULES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "cool": {"temperature": 0.3},
    "hot": {"temperature": 2.0},
    "top_k": {"temperature": 0.9, "top_k": 20},
    "top_p": {"temperature": 0.9, "top_p": 0.8},
    "min_p": {"temperature": 0.9, "min_p": 0.1},
    "stop": {"temperature": 0.5, "stop": ["\n", "."]},
    "stop_regex": {"temperature": 0.5, "stop_regex": "[.,]"},
    "stop_token_ids": {"temperature": 0.5, "stop_token_ids": [30]},
    "frequency_penalty": {"temperature": 0.7, "frequency_penalty": 0.8},
    "presence_penalty": {"temperature": 0.7, "presence_penalty": 0.8},
    "repetition_penalty": {"temperature": 0.7, "repetition_penalty": 1.3},
    "min_new_tokens": {"temperature": 0.7, "stop": ["."], "min_new_tokens": 6},
    "logit_bias": {"temperature": 0.7, "logit_bias": {"7042": -6, "260": 3}},
    **{f"grammar {next(iter(grammar))}": {"temperature": 0.9, **grammar} for grammar in GRAMMARS},
}
LOGPROBS = {"return_logprob": True, "top_logprobs_num": 3}


def assert_cached_is_plain(exact: ReplayClient, ask: Ask) -> int:
    """Send a request without the cache and then twice with it; the tokens that were replayed."""
    plain = exact.samples(ask, "off")
    replayed = 0
    for _ in range(2):
        cached = exact.samples(ask)
        assert len(cached) == len(plain)
        for one, other in zip(cached, plain, strict=True):
            one.assert_same(other)
            assert other.replayed == 0
            replayed += one.replayed
    return replayed


@pytest.mark.parametrize("name", RULES)
def test_outputs_with_and_without_the_cache_are_the_same(exact: ReplayClient, name: str) -> None:
    ask = Ask(PROMPTS[0], {"max_new_tokens": 8, "sampling_seed": 1, **RULES[name]}, LOGPROBS)
    assert assert_cached_is_plain(exact, ask) > 0


def test_log_probabilities_of_chosen_tokens_are_replayed_where_the_row_is_known(exact: ReplayClient) -> None:
    words = [exact.tokens(word)[0] for word in ("yes", "no", "sea")]
    fields = {"return_logprob": True, "token_ids_logprob": words}
    # The grammar leaves few tokens, and the cache keeps them all; "sea" is not among them.
    ask = Ask(PROMPTS[0], {"sampling_seed": 1, "temperature": 1.0, "regex": "(yes|no)"}, fields)
    assert assert_cached_is_plain(exact, ask) > 0
    assert exact.generate(ask).chosen_logprobs[0][2][0] < FORBIDDEN
    # Of a row cut short the model tells what is not there.
    open_end = Ask(PROMPTS[0], {"sampling_seed": 1, "max_new_tokens": 4}, fields)
    before = exact.cache()["stops"].get("undecided", 0)
    assert_cached_is_plain(exact, open_end)
    assert exact.cache()["stops"]["undecided"] > before


@pytest.fixture(scope="module")
def prompts(exact: ReplayClient) -> list[list[int]]:
    """Prompts as tokens; the last one ends inside an output of the first."""
    first, second, third = (exact.tokens(prompt) for prompt in PROMPTS)
    output = exact.generate(Ask(first, {"sampling_seed": 1})).ids
    return [first, second, third, first + output[:4]]


def _maybe(*options: Mapping[str, Any]) -> st.SearchStrategy[Mapping[str, Any]]:
    return st.one_of(st.just({}), st.sampled_from(options))


_OPTIONS = (
    _maybe(
        {"frequency_penalty": 0.8},
        {"presence_penalty": -0.5},
        {"repetition_penalty": 1.2},
        {"frequency_penalty": 0.4, "presence_penalty": 0.4, "repetition_penalty": 1.1},
    ),
    _maybe({"top_k": 3}, {"top_k": 40, "top_p": 0.9}, {"top_p": 0.7}, {"min_p": 0.05}),
    _maybe({"stop": [".", "\n"]}, {"stop_token_ids": [30, 198]}, {"stop_regex": "[,.;]"}),
    _maybe(*GRAMMARS, {"logit_bias": {"260": 4, "198": -5}}),
    _maybe({"min_new_tokens": 3}, {"ignore_eos": True}),
)
_FIELDS: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [{}, {"return_logprob": True}, LOGPROBS, {**LOGPROBS, "token_ids_logprob": [30, 198, 284]}]
)


@st.composite
def _asks(draw: st.DrawFn) -> tuple[int, Ask]:
    """The index of a prompt, and a request without it."""
    params: dict[str, Any] = {
        "sampling_seed": draw(st.sampled_from([1, 2, 3])),
        "temperature": draw(st.sampled_from([0, 0.3, 0.7, 1.0, 2.0])),
        "max_new_tokens": draw(st.integers(1, 16)),
        "n": draw(st.sampled_from([1, 1, 2])),
    }
    for options in _OPTIONS:
        params |= draw(options)
    if params.keys() & PENALTIES:
        # What a penalty has counted when requests overlap is a matter of timing in SGLang.
        params["n"] = 1
    if params.get("min_new_tokens", 0) > params["max_new_tokens"]:
        params["max_new_tokens"] = params["min_new_tokens"]
    fields = {**draw(_FIELDS), "stream": draw(st.booleans())}
    return draw(st.integers(0, 3)), Ask("", params, fields)


@pytest.fixture(scope="module")
def replayed() -> Iterator[list[int]]:
    """Tokens replayed by each example of the matrix."""
    counts: list[int] = []
    yield counts
    assert sum(counts) > 3 * len(counts)


@settings(
    max_examples=repetitions(10, 25),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(drawn=_asks())
def test_any_mix_of_features_is_exact(
    exact: ReplayClient, prompts: list[list[int]], replayed: list[int], drawn: tuple[int, Ask]
) -> None:
    index, ask = drawn
    replayed.append(assert_cached_is_plain(exact, replace(ask, prompt=prompts[index])))


OPENAI: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": PROMPTS[0], "logprobs": 3},
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "Name a city."}],
        "logprobs": True,
        "top_logprobs": 3,
    },
}


def assert_alike(one: Any, other: Any, *without: str) -> None:
    """Raise AssertionError unless two pieces of OpenAI answers say the same, but for what is under some keys."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one.keys() - {"id", "created", "meta_info", "usage", *without}:
            assert_alike(one[key], other[key], *without)
    elif isinstance(one, list):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_alike(left, right, *without)
    else:
        assert one == (pytest.approx(other, abs=1e-4) if isinstance(other, float) else other)


def merged(whole: Any, part: Any) -> Any:
    """A piece of a stream, added to what came before it."""
    if part is None or whole is None:
        return whole if part is None else part
    if isinstance(part, dict):
        return {key: merged(whole.get(key), part.get(key)) for key in whole.keys() | part.keys()}
    return whole + part if isinstance(part, str | list) else part


def openai_answer(
    exact: ReplayClient, path: str, replay: str, extra: dict[str, Any], *, stream: bool
) -> list[dict[str, Any]]:
    """The choices of an answer; those of a stream are put together again."""
    body = {"model": "any", "max_tokens": 8, "seed": 3, "temperature": 0.7, **OPENAI[path], **extra}
    body |= {"custom_params": {"hive": {"replay": replay}}}
    if not stream:
        choices: list[dict[str, Any]] = exact.post(path, body)["choices"]
        return choices
    joined: dict[int, dict[str, Any]] = {}
    with exact.stream(path, {**body, "stream": True}) as chunks:
        for choice in (choice for chunk in chunks for choice in chunk["choices"]):
            joined[choice["index"]] = merged(joined.get(choice["index"]), {**choice, "index": None})
    return [joined[index] for index in sorted(joined)]


@pytest.mark.parametrize(
    "extra", [{}, {"n": 2}, {"frequency_penalty": 0.5}, {"stop": ["."]}], ids=lambda extra: "".join(extra)
)
@pytest.mark.parametrize("path", OPENAI)
def test_openai_endpoints_are_exact(exact: ReplayClient, path: str, extra: dict[str, Any]) -> None:
    plain, *cached = (
        openai_answer(exact, path, replay, extra, stream=False) for replay in ("off", "stepwise", "stepwise")
    )
    for answer in cached:
        assert_alike(answer, plain)
    assert all(choice["meta_info"]["hive"]["tokens_replayed"] > 0 for choice in cached[1])
    plain, again = (openai_answer(exact, path, replay, extra, stream=True) for replay in ("off", "stepwise"))
    assert_alike(again, plain, "top_logprobs")


@pytest.mark.parametrize(
    "path",
    [
        "/v1/completions",
        "/v1/chat/completions",
    ],
)
def test_alternatives_in_a_stream_are_exact(exact: ReplayClient, path: str) -> None:
    openai_answer(exact, path, "stepwise", {}, stream=True)
    plain, cached = (openai_answer(exact, path, replay, {}, stream=True) for replay in ("off", "stepwise"))
    assert_alike(cached, plain)


def test_samples_of_a_seeded_request_differ_and_repeat(exact: ReplayClient) -> None:
    ask = Ask(PROMPTS[1], {"sampling_seed": 7, "temperature": 1.0, "max_new_tokens": 6, "n": 3})
    plain = exact.samples(ask, "off")
    assert len({tuple(answer.ids) for answer in plain}) == 3
    for replay in ("off", "stepwise", "stepwise"):
        for one, other in zip(exact.samples(ask, replay), plain, strict=True):
            one.assert_same(other)
    for sample, other in enumerate(plain):
        alone = replace(ask, params={**ask.params, "n": 1}, tag={"sample": sample} if sample else {})
        for replay in ("off", "stepwise"):
            exact.generate(alone, replay).assert_same(other)


def test_penalties_do_not_depend_on_other_requests(exact: ReplayClient) -> None:
    params = {"sampling_seed": 1, "max_new_tokens": 16, "ignore_eos": True, "frequency_penalty": 2.0}
    ask = Ask(PROMPTS[2], params, {"return_logprob": True, "stream": True})
    alone, again = (exact.generate(ask, "off") for _ in range(2))
    again.assert_same(alone)
    with ThreadPoolExecutor() as pool:
        beside = pool.submit(exact.generate, ask, "off")
        while not beside.done():
            exact.generate(Ask(PROMPTS[0], {"max_new_tokens": 1}), "off")
    beside.result().assert_same(alone)


def test_requests_without_a_seed_differ_and_samples_of_a_state_repeat(exact: ReplayClient) -> None:
    # Long and hot: by chance, two short outputs are the same now and then.
    ask = Ask(PROMPTS[1], {"temperature": 1.5, "max_new_tokens": 24, "ignore_eos": True, "n": 2})
    unseeded = [answer for _ in range(2) for answer in exact.samples(ask)]
    assert len({tuple(answer.ids) for answer in unseeded}) == 4
    tags = [{"session": "s", "state": "root", "sample": sample} for sample in (0, 1, 0)]
    asks = [Ask(PROMPTS[1], {"temperature": 1.0, "max_new_tokens": 8}, tag=tag) for tag in tags]
    samples = [exact.generate(ask).ids for ask in asks]
    assert samples[0] == samples[2] != samples[1]


def test_a_prompt_that_ends_inside_an_earlier_output_is_a_known_state(exact: ReplayClient) -> None:
    first = exact.generate(Ask(PROMPTS[2], {"sampling_seed": 5, "ignore_eos": True}))
    prompt = exact.tokens(PROMPTS[2])
    for taken in (1, 4, 15):
        params = {"max_new_tokens": 16 - taken, "sampling_seed": 5, "ignore_eos": True}
        again = exact.generate(Ask(prompt + first.ids[:taken], params))
        assert again.ids == first.ids[taken:]
        assert again.replayed == 16 - taken


def test_prompts_shorter_and_longer_than_a_cached_path(exact: ReplayClient) -> None:
    tag = {"tenant": "paths"}
    prompt = exact.tokens("The best thing about the sea is")
    short = Ask(prompt, {"sampling_seed": 8, "ignore_eos": True, "max_new_tokens": 12}, tag=tag)
    plain = exact.generate(short, "off")
    # The later half of the way is known first; nobody has been at its beginning.
    later = replace(short, prompt=prompt + plain.ids[:6], params={**short.params, "max_new_tokens": 6})
    assert exact.generate(later).ids == plain.ids[6:]
    first, second = (exact.generate(short) for _ in range(2))
    first.assert_same(plain)
    second.assert_same(plain)
    assert (first.replayed, second.replayed) == (0, 12)
    # The state behind the last token has never been computed.
    beyond = replace(short, prompt=prompt + plain.ids)
    after = exact.generate(beyond)
    after.assert_same(exact.generate(beyond, "off"))
    assert after.replayed == 0
    # A longer output of the short prompt ties both paths together.
    longer = replace(short, params={**short.params, "max_new_tokens": 24})
    tied, whole = (exact.generate(longer) for _ in range(2))
    assert tied.ids == whole.ids == plain.ids + after.ids
    assert (tied.replayed, whole.replayed) == (12, 24)


def test_tenants_share_no_rows(exact: ReplayClient) -> None:
    for tenant, replayed in (("a", 0), ("a", 16), ("b", 0)):
        ask = Ask("A prompt that only this test sends", {"sampling_seed": 4, "ignore_eos": True})
        assert exact.generate(replace(ask, tag={"tenant": tenant})).replayed == replayed


def test_off_neither_replays_nor_records_and_is_counted(exact: ReplayClient) -> None:
    ask = Ask("Nobody records this", {"sampling_seed": 1})
    before = exact.cache()
    assert [exact.generate(ask, "off").replayed for _ in range(2)] == [0, 0]
    after = exact.cache()
    assert after["bypassed"]["asked_off"] == before["bypassed"].get("asked_off", 0) + 2
    for name in ("nodes", "tokens_recorded", "lookups"):
        assert after[name] == before[name]


def test_what_the_cache_cannot_serve_is_bypassed_and_counted(exact: ReplayClient) -> None:
    before = exact.cache()["bypassed"]
    ask = Ask(PROMPTS[0], {"sampling_seed": 1, "max_new_tokens": 2, "top_k": 5})
    for fields in ({"return_logprob": True, "logprob_start_len": 0}, {"return_sampling_mask": True}):
        assert exact.generate(replace(ask, fields=fields)).replayed == 0
    after = exact.cache()["bypassed"]
    for reason in ("input_logprobs", "sampling_mask"):
        assert after[reason] == before.get(reason, 0) + 1


def test_a_flush_empties_the_cache(exact: ReplayClient) -> None:
    ask = Ask(PROMPTS[0], {"sampling_seed": 1})
    before = exact.generate(ask)
    assert exact.cache()["nodes"] > 0
    exact.flush()
    assert exact.cache()["nodes"] == 0
    after, again = (exact.generate(ask) for _ in range(2))
    after.assert_same(before)
    again.assert_same(before)
    assert (after.replayed, again.replayed) == (0, len(before.ids))


def test_a_request_after_one_that_was_aborted(exact: ReplayClient) -> None:
    ask = Ask("Let us count: one,", {"sampling_seed": 2, "max_new_tokens": 60, "ignore_eos": True})
    plain = exact.generate(ask, "off")
    before = exact.cache()["nodes"]
    with exact.stream("/generate", {**ask.body("stepwise"), "stream": True}) as chunks:
        for _ in range(4):
            part = next(chunks)["output_ids"]
    assert part == plain.ids[: len(part)]
    # What it got to is kept.
    exact.wait_for("nodes", before + 1)
    known, again = (exact.generate(ask) for _ in range(2))
    known.assert_same(plain)
    again.assert_same(plain)
    assert 0 < known.replayed < 60
    assert again.replayed == 60


def test_a_replayed_request_joins_the_decode_batch_where_its_kv_is_resident(exact: ReplayClient) -> None:
    params = {"max_new_tokens": 10, "temperature": 1.0, "ignore_eos": True}
    asks = [
        Ask("The road goes", {**params, "sampling_seed": seed}, tag={"tenant": "join"}) for seed in range(3)
    ]
    plain = [exact.generate(ask, "off") for ask in asks]
    before = exact.cache()["joined"]
    cached = [exact.generate(ask) for ask in asks]
    for one, other in zip(cached, plain, strict=True):
        one.assert_same(other)
    partly = sum(0 < answer.replayed < 10 for answer in cached)
    assert partly > 0
    assert exact.cache()["joined"] == before + partly


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/hive/stats"),
        ("GET", "/hive/agents"),
        ("POST", "/hive/agents"),
        ("DELETE", "/hive/sessions/x"),
    ],
)
def test_the_api_key_guards_the_routes(exact: ReplayClient, method: str, path: str) -> None:
    answer = exact.http.request(method, path, headers={"Authorization": "Bearer wrong"}, json={"name": "x"})
    assert answer.status_code == 401
