"""The fields that a request may have, by endpoint, each with its check."""

from __future__ import annotations

from typing import Any

from hive.server.request_checks.fields import (
    check_any_text,
    check_custom_params,
    check_flag,
    check_hidden_states,
    check_logit_bias,
    check_stop_token_ids,
    check_text,
    check_top_k,
    integer,
    number,
)
from hive.server.request_checks.limits import INT32_MAX, INT64_MAX, Check, Limits
from hive.server.request_checks.patterns import (
    check_depth,
    check_grammar,
    check_schema,
    check_schema_text,
    check_stop,
    check_stop_regex,
)
from hive.server.request_tag import RequestError, as_object, shown_key


def _session_params(field: str, value: Any, limits: Limits) -> None:
    for key, item in as_object(field, value).items():
        check = _SESSION_PARAMS.get(key)
        if check is None:
            raise RequestError(f"{field}.{shown_key(key)}", "is unknown")
        if item is not None:
            check(f"{field}.{key}", item, limits)


_SESSION_PARAMS: dict[str, Check] = {
    "id": check_text,
    "rid": check_text,
    "offset": integer(-1, INT32_MAX),
    "replace": check_flag,
    "drop_previous_output": check_flag,
}

_seed = integer(0, INT64_MAX)
_n = integer(1, lambda limits: limits.max_n)
_tokens = integer(0, INT32_MAX)
_top_logprobs = integer(0, lambda limits: min(limits.max_top_logprobs, limits.vocab_size))

_SHARED: dict[str, Check] = {
    "n": _n,
    # Above 100 every distribution is flat anyway; float32 overflows far below the largest JSON number.
    "temperature": number(0, 100),
    "top_p": number(0, 1, above=True),
    "top_k": check_top_k,
    "min_p": number(0, 1),
    "frequency_penalty": number(-2, 2),
    "presence_penalty": number(-2, 2),
    # Logits are divided by it.
    "repetition_penalty": number(0.01, 2),
    "stop": check_stop,
    "stop_token_ids": check_stop_token_ids,
    "stop_regex": check_stop_regex,
    "ignore_eos": check_flag,
    "skip_special_tokens": check_flag,
    "no_stop_trim": check_flag,
    "logit_bias": check_logit_bias,
    "regex": check_grammar,
    "ebnf": check_grammar,
    "custom_params": check_custom_params,
}
"""Sampling parameters with the same name in ``sampling_params`` and in OpenAI's bodies."""

SAMPLING_PARAMS: dict[str, Check] = {
    **_SHARED,
    "max_new_tokens": _tokens,
    "min_new_tokens": _tokens,
    "sampling_seed": _seed,
    "spaces_between_special_tokens": check_flag,
    "stream_interval": integer(1, INT32_MAX),
    "json_schema": check_schema_text,
    "structural_tag": check_schema_text,
}
"""All parameters that ``sampling_params`` may have; SGLang answers others with 500 or takes them as internal state."""

PER_PROMPT_FIELDS: dict[str, Check] = {
    "return_logprob": check_flag,
    # -1 means "only the output".
    "logprob_start_len": integer(-1, lambda limits: limits.context_length),
    "top_logprobs_num": _top_logprobs,
}

_ROUTING: dict[str, Check] = {
    "stream": check_flag,
    "session_id": check_text,
    "session_params": _session_params,
    "priority": integer(-(2**31), INT32_MAX),
    "routed_dp_rank": integer(0, INT32_MAX),
    "disagg_prefill_dp_rank": integer(0, INT32_MAX),
}
"""Fields that decide where and when a request runs."""

ROUTING_PER_PROMPT: dict[str, Check] = {
    "extra_key": check_text,
    "lora_path": check_text,
    "custom_logit_processor": check_any_text,
    "bootstrap_host": check_text,
    "bootstrap_port": integer(0, 65535),
    "bootstrap_room": integer(0, INT64_MAX),
}
"""Fields that SGLang takes as lists, too; it forwards the list as a single value if there is only one prompt."""

GENERATE_FIELDS: dict[str, Check] = {
    **_ROUTING,
    "routing_key": check_text,
    "conversation_id": check_text,
    "max_thinking_tokens": _tokens,
    "routed_experts_start_len": _tokens,
}

GENERATE_PER_PROMPT: dict[str, Check] = {
    **ROUTING_PER_PROMPT,
    "return_sampling_mask": check_flag,
    "return_hidden_states": check_hidden_states,
}

_OPENAI: dict[str, Check] = {
    **_SHARED,
    **_ROUTING,
    "seed": _seed,
    "cache_salt": check_text,
    "data_parallel_rank": integer(0, INT32_MAX),
    "routed_experts_start_len": _tokens,
    "return_hidden_states": check_hidden_states,
    "max_tokens": integer(1, INT32_MAX),
    "min_tokens": _tokens,
    "echo": check_flag,
    "response_format": check_schema,
}

COMPLETION_FIELDS: dict[str, Check] = {**_OPENAI, "logprobs": _top_logprobs, "json_schema": check_schema_text}

CHAT_FIELDS: dict[str, Check] = {
    **_OPENAI,
    "max_completion_tokens": integer(1, INT32_MAX),
    "logprobs": check_flag,
    "top_logprobs": _top_logprobs,
    "tools": check_depth,
    "chat_template_kwargs": check_schema,
}
