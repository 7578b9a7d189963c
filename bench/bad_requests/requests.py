"""The collection: each request is wrong in one way, and names the field that an answer has to blame.

``tests/server/test_bad_requests.py`` sends all of them to a Hive server, which must answer 400 and keep serving;
``python -m bench.bad_requests`` sends them to stock SGLang and prints what happens.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

PROMPT = "The capital of France is"
VOCAB_SIZE = 49152
"""Of the embedded model."""
MODEL = "default"
"""What requests call the model."""

Outcome = Literal["dies", "stalls", "500", "400", "200", "no answer", "connection closed"]
"""``dies``: the server is gone.  ``stalls``: it no longer answers any request.  Otherwise the answer."""


@dataclass(frozen=True)
class BadRequest:
    """One request, and the field at fault."""

    name: str
    path: str
    body: bytes
    blamed: str
    """Has to occur in the message of the answer."""
    headers: dict[str, str] = field(default_factory=dict)

    def asking(self, model: str) -> bytes:
        """The body, for a server that calls its model so: some look at the name before anything else."""
        return self.body.replace(json.dumps(MODEL).encode(), json.dumps(model).encode())


def _generate(name: str, blamed: str, params: Any = None, **fields: Any) -> BadRequest:
    """A ``/generate`` request; ``params`` go into ``sampling_params`` unless they are no dict."""
    merged = {"max_new_tokens": 4, **params} if isinstance(params, dict) else params
    body = {
        "text": PROMPT,
        "sampling_params": merged if params is not None else {"max_new_tokens": 4},
        **fields,
    }
    body = {key: value for key, value in body.items() if value is not _ABSENT}
    return BadRequest(f"generate {name}", "/generate", json.dumps(body).encode(), blamed)


def _completion(name: str, blamed: str, **fields: Any) -> BadRequest:
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 4, **fields}
    return BadRequest(f"completion {name}", "/v1/completions", json.dumps(body).encode(), blamed)


def _chat(name: str, blamed: str, **fields: Any) -> BadRequest:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, **fields}
    return BadRequest(f"chat {name}", "/v1/chat/completions", json.dumps(body).encode(), blamed)


def _elsewhere(path: str, blamed: str, **fields: Any) -> BadRequest:
    return BadRequest(f"{path} {blamed}", path, json.dumps(fields).encode(), blamed)


_ABSENT: Any = object()


def _of_param(key: str, *values: Any) -> list[BadRequest]:
    """The same sampling parameter with several bad values."""
    return [_generate(f"{key}={_show(value)}", key, {key: value}) for value in values]


def _of_field(key: str, *values: Any, **others: Any) -> list[BadRequest]:
    """The same top-level field of ``/generate`` with several bad values."""
    return [_generate(f"{key}={_show(value)}", key, **{**others, key: value}) for value in values]


def _show(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:30]}… ({len(text)} characters)"


_LONG_REGEX = "(a|b)" * 10_000
_DEEP_SCHEMA = '{"type":"array","items":' * 3000 + '{"type":"integer"}' + "}" * 3000

BAD_REQUESTS: tuple[BadRequest, ...] = (
    # How many answers, and which ones.
    *_of_param("n", 0, -1, "2", 1.5, True, 1_000_000),
    *_of_param("sampling_seed", "7", 1.5, -1, 2**63, 2**64, True),
    # Numbers that are none, or not the ones the tensors take.
    *_of_param("temperature", "hot", -1, 1e300),
    # SGLang's JSON parser knows neither of them.
    _generate("temperature=NaN", "JSON", {"temperature": float("nan")}),
    _generate("temperature=Infinity", "JSON", {"temperature": float("inf")}),
    *_of_param("top_p", "x", 0, 1.5),
    *_of_param("top_k", 0, "5", 2.5, 2**31, 2**40),
    *_of_param("min_p", "x", 2),
    *_of_param("frequency_penalty", "x", 3),
    *_of_param("repetition_penalty", 0, 1e-46),
    *_of_param("max_new_tokens", -1, "4", 2.5, 2**31, 10**30),
    *_of_param("min_new_tokens", -1, "4", 2.5),
    # Stopping.
    *_of_param("stop", 5, [5], [None], {"a": 1}, "x" * 100_000),
    *_of_param("stop_token_ids", 5, [-1], ["a"], [VOCAB_SIZE], [2**70], [1.5]),
    _generate(
        "stop_token_ids=[-1] with min_new_tokens",
        "stop_token_ids",
        {"stop_token_ids": [-1], "min_new_tokens": 2},
    ),
    _generate(
        "stop_token_ids=[10^6] with min_new_tokens",
        "stop_token_ids",
        {"stop_token_ids": [10**6], "min_new_tokens": 2},
    ),
    *_of_param("stop_regex", "(", 5, [5], "a{2,1}"),
    _generate(
        "stop_regex that backtracks forever",
        "stop_regex",
        {"stop_regex": "(([A-Za-z ,.']+)+)+#", "max_new_tokens": 64, "ignore_eos": True},
    ),
    # Flags.
    *_of_param("ignore_eos", "yes", 1),
    *_of_param("skip_special_tokens", "no"),
    *_of_param("no_stop_trim", 2),
    _generate('stream_interval="x"', "stream_interval", {"stream_interval": "x"}, stream=True),
    _generate("stream_interval=-1", "stream_interval", {"stream_interval": -1}, stream=True),
    # Logit bias.
    *_of_param(
        "logit_bias", [1], {"x": 1}, {"-1": 1}, {str(VOCAB_SIZE): 1}, {"5": "x"}, {"5": 1e300}, {"5": None}
    ),
    # Grammars.
    *_of_param("json_schema", {"type": "object"}, "{", 5, _DEEP_SCHEMA),
    *_of_param("regex", 5, "(", _LONG_REGEX),
    *_of_param("ebnf", 5, "root ::= ("),
    *_of_param("structural_tag", 5, "{"),
    _generate("regex and ebnf", "regex", {"regex": "a", "ebnf": 'root ::= "a"'}),
    # Parameters that SGLang does not know, or keeps for itself.
    _generate("unknown sampling parameter", "temprature", {"temprature": 1}),
    _generate("is_normalized", "is_normalized", {"is_normalized": True}),
    _generate("stop_strs", "stop_strs", {"stop_strs": 5, "is_normalized": True}),
    *_of_param(
        "custom_params", "x", [1], {"a": {"b": {"c": 1}}}, {"a": [[1]]}, {"a": 2**64 - 1}, {"__req__": 1}
    ),
    _generate("sampling_params='x'", "sampling_params", "x"),
    _generate("sampling_params=[]", "sampling_params", []),
    _generate("sampling_params=[1]", "sampling_params", [1]),
    _generate("sampling_params=[{}] for one text", "sampling_params", [{}]),
    _generate("two sampling_params for three texts", "sampling_params", [{}, {}], text=[PROMPT] * 3),
    # The prompt.
    _generate("no prompt", "text", text=_ABSENT),
    *_of_field("text", 5, [], [5], ["", 5], ""),
    _generate("text and input_ids", "input_ids", input_ids=[1, 2]),
    *_of_field(
        "input_ids",
        [],
        [[]],
        [-1],
        [VOCAB_SIZE],
        [2**31],
        [2**63],
        [1.5],
        ["a"],
        [True],
        [[1], 2],
        "x",
        text=_ABSENT,
    ),
    *_of_field("input_embeds", [], [[]], [[1]], "x", text=_ABSENT),
    # Log-probabilities.
    *_of_field("top_logprobs_num", -1, VOCAB_SIZE + 1, 10**9, 1.5, "x", [1], True, return_logprob=True),
    *_of_field("token_ids_logprob", [-1], [VOCAB_SIZE], ["a"], [[1]], 5, [2**70], "x", return_logprob=True),
    *_of_field("logprob_start_len", -2, -5, 10**9, 2**64, 1.5, [0], "x", return_logprob=True),
    *_of_field("return_logprob", "x", [True], 2),
    *_of_field("top_logprobs_num", [1], [1, 2, 3], return_logprob=True, text=[PROMPT] * 2),
    *_of_field("logprob_start_len", [0], return_logprob=True, text=[PROMPT] * 2),
    *_of_field("return_logprob", [True], text=[PROMPT] * 2),
    _generate(
        "token_ids_logprob, one list for two texts",
        "token_ids_logprob",
        text=[PROMPT] * 2,
        return_logprob=True,
        token_ids_logprob=[[1]],
    ),
    *_of_field("return_sampling_mask", True, "x"),
    *_of_field("return_flat_raw_top_logprobs", "x"),
    # Identity and routing.
    *_of_field("rid", ["a", "b"], 5, {"a": 1}, "", "x" * 100_000, "HEALTH_CHECK_1"),
    *_of_field("rid", ["a", "a"], ["a"], text=[PROMPT] * 2),
    *_of_field("extra_key", ["a", "b"], 5, "x" * 100_000),
    *_of_field("priority", "x", 2**64),
    *_of_field("session_params", {"id": 5}, {"foo": 1}, "x"),
    *_of_field("session_id", 5),
    *_of_field("lora_path", ["a", "b"], 5),
    *_of_field("custom_labels", {"a": 1}, {"agent": "x"}),
    *_of_field("routing_key", 5),
    *_of_field("bootstrap_host", ["a", "b"], 5),
    *_of_field("bootstrap_port", ["a"], 2**64),
    *_of_field("bootstrap_room", 2**64, "x"),
    *_of_field("routed_dp_rank", 7, -1, 2**64),
    *_of_field("stream", "x", 2),
    _generate("return_hidden_states=true", "hidden states", return_hidden_states=True),
    *_of_field("return_hidden_states", [True, False]),
    *_of_field("routed_experts_start_len", 2**64, return_routed_experts=True),
    *_of_field("max_thinking_tokens", 2**64, -1),
    _generate('custom_logit_processor="x"', "custom logit processor", custom_logit_processor="x"),
    *_of_field("custom_logit_processor", ["x"]),
    *_of_field("modalities", "x"),
    # Fields of SGLang's own processes.
    *_of_field("http_worker_ipc", "ipc:///tmp/nobody"),
    *_of_field("positional_embed_overrides", {"a": 1}),
    *_of_field("multi_item_delimiter_indices", [10**6], [1]),
    *_of_field("mm_data_mooncake", [1]),
    *_of_field("encoder_urls", ["http://127.0.0.1:9"]),
    *_of_field("need_wait_for_mm_inputs", True),
    *_of_field("num_items_assigned", {"a": [1]}),
    *_of_field("lora_id", "x"),
    *_of_field("received_time", "x", -1e300),
    *_of_field("external_trace_header", {"a": {"b": {"c": 1}}}),
    # Completions.
    *(_completion(f"n={_show(value)}", "n", n=value) for value in (0, -1, 10**6)),
    *(_completion(f"seed={_show(value)}", "seed", seed=value) for value in (-1, 2**64)),
    *(_completion(f"logprobs={_show(value)}", "logprobs", logprobs=value) for value in (-1, VOCAB_SIZE + 1)),
    *(
        _completion(f"prompt={_show(value)}", "prompt", prompt=value)
        for value in ("", [], [-1], [VOCAB_SIZE], [[1], []], [1, [2]], ["a", ""], 5)
    ),
    _completion("top_k=2^31", "top_k", top_k=2**31),
    _completion("max_tokens=-1", "max_tokens", max_tokens=-1),
    _completion("max_tokens=2^32", "max_tokens", max_tokens=2**32),
    _completion("stop_token_ids=[-1]", "stop_token_ids", stop_token_ids=[-1], min_tokens=2),
    _completion("logit_bias", "logit_bias", logit_bias={"5": 1e300}),
    _completion("custom_params", "custom_params", custom_params={"a": {"b": {"c": 1}}}),
    _completion("stop_regex", "stop_regex", stop_regex="("),
    # Chat.
    *(_chat(f"n={_show(value)}", "n", n=value) for value in (0, -1, 10**6)),
    *(_chat(f"seed={_show(value)}", "seed", seed=value) for value in (-1, 2**64)),
    *(
        _chat(f"top_logprobs={_show(value)}", "top_logprobs", logprobs=True, top_logprobs=value)
        for value in (-1, VOCAB_SIZE + 1)
    ),
    _chat("top_k=2^31", "top_k", top_k=2**31),
    _chat("max_tokens=-1", "max_tokens", max_tokens=-1),
    _chat("max_completion_tokens=0", "max_completion_tokens", max_completion_tokens=0),
    _chat("stop_token_ids=[-1]", "stop_token_ids", stop_token_ids=[-1], min_tokens=2),
    _chat("logit_bias", "logit_bias", logit_bias={"5": 1e300}),
    _chat("custom_params", "custom_params", custom_params={"a": {"b": {"c": 1}}}),
    _chat("input_ids", "input_ids", input_ids=[VOCAB_SIZE]),
    _chat("no messages", "messages", messages=[]),
    _chat("messages='x'", "messages", messages="x"),
    _chat("chat_template_kwargs", "chat_template_kwargs", chat_template_kwargs="x"),
    _chat("rid list", "rid", rid=["a", "b"]),
    _chat("response_format", "response_format", response_format="x"),
    _chat("reasoning_effort", "reasoning_effort", reasoning_effort="x"),
    # Streams: the refusal has to come before a 200.
    _chat("stream, n=0", "n", n=0, stream=True),
    _generate("stream, top_k=2^31", "top_k", {"top_k": 2**31}, stream=True),
    # Endpoints without checks of their own in front of them.
    _elsewhere("/v1/responses", "top_k", model=MODEL, input="Hi", max_output_tokens=4, top_k=2**31),
    _elsewhere(
        "/vertex_generate",
        "top_logprobs_num",
        instances=[{"text": "Hi"}],
        parameters={"return_logprob": True, "top_logprobs_num": 10**6},
    ),
    _elsewhere(
        "/v1/messages",
        "top_k",
        model=MODEL,
        max_tokens=4,
        messages=[{"role": "user", "content": "Hi"}],
        top_k=2**31,
    ),
    _elsewhere("/api/generate", "top_k", model=MODEL, prompt="Hi", stream=False, options={"top_k": 2**31}),
    _elsewhere(
        "/invocations", "top_k", messages=[{"role": "user", "content": "Hi"}], max_tokens=4, top_k=2**31
    ),
    # No JSON at all.
    BadRequest("generate truncated JSON", "/generate", b'{"text": "x"', "JSON"),
    BadRequest("generate body is a list", "/generate", b"[]", "object"),
    BadRequest("generate empty body", "/generate", b"", "JSON"),
    BadRequest("generate nested 100000 deep", "/generate", b"[" * 100_000 + b"]" * 100_000, "JSON"),
    BadRequest(
        "generate lone surrogate",
        "/generate",
        b'{"text": "\\ud800", "sampling_params": {"max_new_tokens": 4}}',
        "JSON",
    ),
)

LEFT_TO_SGLANG = frozenset(
    {
        'generate regex="("',
        'generate ebnf="root ::= ("',
        "generate return_sampling_mask=true",
        'generate return_flat_raw_top_logprobs="x"',
        "generate routed_dp_rank=7",
        "generate return_hidden_states=true",
        'generate custom_logit_processor="x"',
        'generate modalities="x"',
        "chat reasoning_effort",
    }
)
"""Names of those that SGLang's own models and compilers refuse well enough: the door lets them pass."""
