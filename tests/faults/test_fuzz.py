"""Requests made up by chance: whatever comes, no answer is the server's own error, and it serves on.

``HIVE_FUZZ_EXAMPLES`` is the number of requests; all of the campaign are 10,000.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from hive.server.server_process import ServerProcess
from tests.faults.conftest import settled
from tests.server.replay_client import PROMPTS, Ask, ReplayClient

pytestmark = [pytest.mark.server, pytest.mark.timeout(3600)]

EXAMPLES = int(os.environ.get("HIVE_FUZZ_EXAMPLES", "300"))
SEED = int(os.environ.get("HIVE_FUZZ_SEED", "0"))
GENERATING = ("/generate", "/v1/completions", "/v1/chat/completions")
HIVE = (
    ("POST", "/hive/agents"),
    ("GET", "/hive/agents"),
    ("GET", "/hive/stats"),
    ("POST", "/hive/check"),
    ("POST", "/hive/render"),
    ("POST", "/hive/generate"),
    ("DELETE", "/hive/requests/{rid}"),
    ("DELETE", "/hive/sessions/{session}"),
)
LENGTHS = ("max_new_tokens", "max_tokens", "max_completion_tokens")
PATIENCE_S = 60.0
"""A first grammar compiles code."""


class Target:
    """The server, the answers that it gave, and the document of its routes."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.client = ReplayClient(server.url)
        self.http = httpx.Client(base_url=server.url, timeout=PATIENCE_S, trust_env=False)
        document = self.http.get("/openapi.json").json()
        self.schema = schemathesis.openapi.from_dict(document)
        self.answers: Counter[int] = Counter()

    def send(self, method: str, path: str, content: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        """Send one request. AssertionError for an answer that is the server's fault, in a stream or not."""
        said = f"{method} {path} {headers} {content[:2000]!r}"
        try:
            answer = self.http.request(method, path, content=content, headers=headers)
        except httpx.TransportError as error:
            raise AssertionError(f"{said}: {type(error).__name__}: {error}") from None
        self.answers[answer.status_code] += 1
        said += f": {answer.status_code} {answer.text[:2000]}"
        assert answer.status_code < 500, said
        for line in answer.text.splitlines():
            if line.startswith("data: {"):
                error = json.loads(line.removeprefix("data: ")).get("error") or {}
                assert int(error.get("code", 400)) < 500, said


@pytest.fixture(scope="module")
def target(server: ServerProcess) -> Iterator[Target]:
    target = Target(server)
    ask = Ask(PROMPTS[0], {"sampling_seed": 1, "max_new_tokens": 8})
    plain = target.client.generate(ask, "off")
    yield target
    assert server.process.poll() is None
    target.client.generate(ask, "off").assert_same(plain)
    settled(target.client)
    print(f"{target.answers.total()} requests: {dict(target.answers)}")
    target.http.close()
    target.client.http.close()


def short(path: str, body: Any) -> Any:
    """The same request with a short output, unless the field itself is what is wrong."""
    if not isinstance(body, dict):
        return body
    owners: list[Any] = [body]
    if path == "/generate":
        if body.get("sampling_params") is None:
            body = {**body, "sampling_params": {}}
        params = body["sampling_params"]
        owners = params if isinstance(params, list) else [params]
    for owner in (item for item in owners if isinstance(item, dict)):
        if all(owner.get(name) is None for name in LENGTHS):
            owner["max_new_tokens" if path == "/generate" else "max_tokens"] = 2
        for name in (*LENGTHS, "n", "min_new_tokens", "min_tokens"):
            if type(owner.get(name)) in (int, float) and 2 < owner[name] < 10**6:
                owner[name] = 2
    return body


def runs(share: float) -> Any:
    """Settings of one fuzzer, which sends its share of the requests."""
    return settings(
        max_examples=max(1, round(EXAMPLES * share)),
        deadline=None,
        derandomize=SEED == 0,
        database=None,
        # To make a failing request smaller would take more requests than there are.
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


def _words(text: str) -> list[str]:
    return text.split()


_NAMES = st.sampled_from(
    [
        "agent",
        "session",
        "state",
        "sample",
        "replay",
        "tenant",
        "hotspot_threshold",
        "hotspot_top_k",
        "hotspot_decay",
    ]
)
_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, 1, -1, 2**31, 2**63, 2**64, -(2**63), 1e308, 0.5, 1.5])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | st.sampled_from(
        ["", "a", "stepwise", "distinct", "hotspot", "(a|b)+", "{", "\x00", "\ud7ff", "HEALTH_CHECK"]
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
_TAG = st.dictionaries(_NAMES | st.text(max_size=8), _JSON, max_size=5)
_PARAMS = _words(
    """
    temperature top_p top_k min_p frequency_penalty presence_penalty repetition_penalty min_new_tokens
    max_new_tokens stop stop_token_ids stop_regex n json_schema regex ebnf structural_tag ignore_eos
    skip_special_tokens spaces_between_special_tokens no_stop_trim custom_params logit_bias sampling_seed
    stream_interval
    """
)
_FIELDS = _words(
    """
    rid return_logprob logprob_start_len top_logprobs_num token_ids_logprob return_text_in_logprobs stream
    lora_path extra_key priority return_hidden_states session_params custom_logit_processor bootstrap_host
    routing_key conversation_id background no_logs custom_labels input_embeds image_data modalities
    log_metrics sampling_params data_parallel_rank return_routed_experts require_reasoning
    """
)
_OPENAI = _words(
    """
    rid model stop seed n logprobs top_logprobs echo suffix best_of stream stream_options logit_bias user
    temperature top_p frequency_penalty response_format tools tool_choice custom_params return_meta_info
    chat_template_kwargs reasoning_effort continue_final_message prompt messages min_tokens ebnf regex
    json_schema lora_path cache_salt
    """
)


@st.composite
def _bodies(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A sound request of which a few fields are anything."""
    path = draw(st.sampled_from(GENERATING))
    if path == "/generate":
        params: dict[str, Any] = {"max_new_tokens": 2}
        params |= draw(st.dictionaries(st.sampled_from(_PARAMS), _JSON, max_size=3))
        if draw(st.booleans()):
            params["custom_params"] = {"hive": draw(_TAG)}
        prompt = draw(st.sampled_from([{"text": "a"}, {"text": ["a", "b"]}, {"input_ids": [1, 2]}, {}]))
        return path, {"sampling_params": params, **prompt, **draw(_some(_FIELDS))}
    prompt = (
        {"prompt": "a"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "a"}]}
    )
    body = {"model": "any", "max_tokens": 2, **prompt, **draw(_some(_OPENAI))}
    if draw(st.booleans()):
        body["custom_params"] = {"hive": draw(_TAG)}
    return path, body


def _some(names: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(names) | st.text(max_size=6), _JSON, max_size=3)


@pytest.mark.parametrize("spoilt", [False, True])
@pytest.mark.parametrize("path", GENERATING)
def test_requests_by_the_document(target: Target, path: str, spoilt: bool) -> None:
    """As the OpenAPI document says; or with anything in place of a field or two."""
    # Schemathesis' own negative requests take minutes to make for documents of this size.
    wrong = st.lists(st.tuples(st.integers(0, 200), _JSON), min_size=1, max_size=2) if spoilt else st.just([])

    @runs(0.4 / 6)
    @given(target.schema[path]["POST"].as_strategy(), wrong)
    def fuzz(case: schemathesis.Case, wrong: list[tuple[int, Any]]) -> None:
        body = case.body
        for place, value in wrong if isinstance(body, dict) and body else []:
            body = {**body, list(body)[place % len(body)]: value}
        target.send(
            "POST", path, json.dumps(short(path, body)).encode(), [(b"content-type", b"application/json")]
        )

    fuzz()


def test_sound_requests_of_which_some_fields_are_anything(target: Target) -> None:
    @runs(0.35)
    @given(_bodies())
    def fuzz(request: tuple[str, dict[str, Any]]) -> None:
        path, body = request
        content = json.dumps(short(path, body)).encode()
        target.send("POST", path, content, [(b"content-type", b"application/json")])

    fuzz()


_VALUES = st.one_of(
    st.sampled_from(
        [b"", b"a", b"1", b"-1", b"stepwise", b"distinct", b"hotspot", b"off", b"99999999999999999999"]
    ),
    st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40).map(str.encode),
    st.binary(max_size=30).map(lambda raw: bytes(byte for byte in raw if byte >= 32 and byte != 127)),
    st.just(b"x" * 5000),
).map(bytes.strip)
_HEADERS = st.lists(
    st.tuples(
        _NAMES.map(lambda name: b"x-hive-" + name.replace("_", "-").encode())
        | st.sampled_from(
            [b"x-hive-", b"x-hive-unknown", b"content-type", b"content-encoding", b"accept", b"x-request-id"]
        ),
        _VALUES,
    ),
    max_size=5,
)
_RAW = st.one_of(
    st.just(b'{"text": "a", "sampling_params": {"max_new_tokens": 1}}'),
    st.just(b'{"model": "x", "prompt": "a", "max_tokens": 1}'),
    st.just(b'{"model": "x", "messages": [{"role": "user", "content": "a"}], "max_tokens": 1}'),
    st.binary(max_size=40),
    st.sampled_from(
        [b"", b"null", b"[]", b"{", b'{"text": NaN}', b'"\xff"', b"[" * 2000, b"\xef\xbb\xbf{}", b"0" * 99]
    ),
    _JSON.map(lambda value: json.dumps(value).encode()),
)


def test_headers_and_bodies_that_are_anything(target: Target) -> None:
    @runs(0.15)
    @given(st.sampled_from(GENERATING), _HEADERS, _RAW)
    def fuzz(path: str, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        target.send("POST", path, body, headers)

    fuzz()


def test_hives_own_routes(target: Target) -> None:
    registration = st.fixed_dictionaries(
        {},
        optional={"name": _JSON | st.just("fuzzed"), "description": _JSON, "session": _JSON, "other": _JSON},
    )
    messages = st.lists(
        st.fixed_dictionaries(
            {}, optional={"role": st.sampled_from(["user", "system", "x"]) | _JSON, "content": _JSON}
        ),
        max_size=3,
    )
    rendering = st.fixed_dictionaries(
        {}, optional={"messages": messages | _JSON, "prefix_ids": _JSON, "other": _JSON}
    )
    bodies = (registration | rendering | _JSON).map(lambda body: json.dumps(body).encode())

    @runs(0.1)
    @given(
        st.sampled_from(HIVE), bodies | _RAW, _HEADERS, st.text(st.characters(codec="utf-8"), max_size=150)
    )
    def fuzz(route: tuple[str, str], body: bytes, headers: list[tuple[bytes, bytes]], session: str) -> None:
        method, path = route
        escaped = "".join(f"%{byte:02x}" for byte in session.encode())
        target.send(
            method, path.format(session=escaped, rid=escaped), body if method == "POST" else b"", headers
        )

    fuzz()
