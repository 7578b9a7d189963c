"""Checks of requests in the engine's own form: ``/generate``, and everything that other endpoints turn into it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hive.server.request_checks.batches import (
    check_all,
    check_all_per_prompt,
    check_fanout,
    check_min_tokens,
    check_no_probe,
    check_rid,
    check_segments,
    count_prompts,
    only_one_of,
)
from hive.server.request_checks.fields import check_few_token_ids
from hive.server.request_checks.limits import Limits
from hive.server.request_checks.media import check_media
from hive.server.request_checks.parameters import (
    GENERATE_FIELDS,
    GENERATE_PER_PROMPT,
    PER_PROMPT_FIELDS,
    SAMPLING_PARAMS,
)
from hive.server.request_tag import RequestError, as_object, shown, shown_key


def check_generate(body: Any, limits: Limits) -> None:
    """Check the body of ``/generate``.

    Raises:
        RequestError: with the invalid field and its rule.
    """
    fields = as_object("body", body)
    for name, value in fields.items():
        # sglang-router adds `return_bytes` to requests that it forwards, with its default.
        unset = value is None or (name == "return_bytes" and value is False)
        if name in _INTERNAL_FIELDS and not unset:
            raise RequestError(name, "is internal to the server and must not be set by a request")
    check_no_probe(fields.get("rid"))
    size = _check_engine_fields(fields, limits)
    check_all(fields, GENERATE_FIELDS, limits)
    check_all_per_prompt(fields, GENERATE_PER_PROMPT, size, limits)


def check_vertex(body: Any, limits: Limits) -> None:
    """Check the body of ``/vertex_generate``: prompts as ``instances``, everything else in ``parameters``.

    Raises:
        RequestError: with the invalid field, as ``/generate`` names it, and its rule.
    """
    fields = as_object("body", body)
    instances = fields.get("instances")
    if not isinstance(instances, list):
        raise RequestError("instances", f"must be a list of objects, got {shown(instances)}")
    for index, instance in enumerate(instances):
        as_object(f"instances[{index}]", instance)
    parameters = as_object("parameters", fields.get("parameters") or {})
    taken = [name for name in (*_PROMPTS, "image_data") if name in parameters]
    if taken:
        raise RequestError(f"parameters.{taken[0]}", "must be in instances")
    if not instances:
        return
    prompt = next((name for name in _PROMPTS if instances[0].get(name)), None)
    if prompt is None:
        raise RequestError("instances[0]", f"must have one of {', '.join(_PROMPTS)}")
    images = [instance["image_data"] for instance in instances if instance.get("image_data") is not None]
    prompts = [instance.get(prompt) for instance in instances]
    check_generate({**parameters, prompt: prompts, "image_data": images or None}, limits)


def check_request_object(obj: Any, limits: Limits) -> None:
    """Check the engine's own request object, whichever endpoint made it.

    Takes SGLang's ``GenerateReqInput`` before it is normalised (or any object with the same attributes), so that
    endpoints without checks of their own cannot bypass them.  For embedding requests only the media are checked: their
    prompts have other shapes, and nothing is sampled.

    Raises:
        RequestError: with the invalid field and its rule.
    """
    fields = {name: getattr(obj, name, None) for name in _ENGINE_FIELDS}
    if hasattr(obj, "top_logprobs_num"):
        _check_engine_fields(fields, limits)
    else:
        _check_media(fields, limits)


_PROMPTS = ("text", "input_ids", "input_embeds")
_MEDIA = ("image_data", "video_data", "audio_data")
_ENGINE_FIELDS = (
    *_MEDIA,
    *("text", "input_ids", "input_embeds", "sampling_params", "rid"),
    *("return_logprob", "logprob_start_len", "top_logprobs_num", "token_ids_logprob"),
)

_INTERNAL_FIELDS = frozenset(
    {
        # Addresses and state of SGLang's own processes: they decide where answers go, and what a request waits for.
        *(
            "http_worker_ipc",
            "encoder_urls",
            "mm_data_mooncake",
            "need_wait_for_mm_inputs",
            "num_items_assigned",
        ),
        # Objects without a JSON form, and values that SGLang derives itself.
        *("positional_embed_overrides", "multi_item_delimiter_indices", "lora_id", "return_bytes"),
        *("received_time", "external_trace_header"),
        # Labels that the server's metrics were not declared with would end the process that counts.
        "custom_labels",
    }
)
"""Fields of ``GenerateReqInput`` that SGLang also reads from a body, although only its own processes may set them."""


def _check_engine_fields(fields: Mapping[str, Any], limits: Limits) -> int | None:
    """Check prompt, sampling parameters and log-probabilities of a request in the engine's own form.

    Returns the number of prompts of a batch; None for a single prompt.
    """
    prompts, batch = _count_engine_prompts(fields, limits)
    size = prompts if batch else None
    _check_media(fields, limits)
    params = fields.get("sampling_params")
    if isinstance(params, list):
        if size is None:
            raise RequestError("sampling_params", "must be an object for a single prompt, got a list")
        if len(params) != size:
            raise RequestError(
                "sampling_params", f"must have one object per prompt, got {len(params)} for {size} prompts"
            )
        for index, item in enumerate(params):
            check_sampling_params(f"sampling_params[{index}]", item, limits)
        answers = {item.get("n", 1) for item in params}
        if len(answers) > 1:
            raise RequestError("sampling_params", "must have the same n for every prompt")
        n = params[0].get("n") if params else None
    elif params is not None:
        check_sampling_params("sampling_params", params, limits)
        n = params.get("n")
    else:
        n = None
    for item in params if isinstance(params, list) else [params or {}]:
        custom = item.get("custom_params")
        check_segments("sampling_params.custom_params", custom, fields.get("input_ids"), size)
    check_fanout("sampling_params.n", prompts, n, limits)
    check_rid(fields.get("rid"), size, limits)
    check_all_per_prompt(fields, PER_PROMPT_FIELDS, size, limits)
    if fields.get("token_ids_logprob"):
        _check_token_ids_logprob(fields["token_ids_logprob"], size, limits)
    return size


def _check_media(fields: Mapping[str, Any], limits: Limits) -> None:
    if not limits.media_files:
        for name in _MEDIA:
            check_media(name, fields.get(name))


def _count_engine_prompts(fields: Mapping[str, Any], limits: Limits) -> tuple[int, bool]:
    name = only_one_of(fields, _PROMPTS)
    if fields[name] == "" and any(fields.get(media) for media in _MEDIA):
        return 1, False
    if name == "input_embeds":
        return _count_embeddings(name, fields[name], limits)
    return count_prompts(name, fields[name], limits, texts=name == "text", ids=name == "input_ids")


def _count_embeddings(field: str, value: Any, limits: Limits) -> tuple[int, bool]:
    """Count embeddings as SGLang does: a matrix, or a list of matrices for a batch."""
    if not isinstance(value, list) or not value or not all(isinstance(row, list) and row for row in value):
        raise RequestError(field, f"must be a matrix of numbers, or a list of such, got {shown(value)}")
    batch = isinstance(value[0][0], list)
    for matrix in value if batch else [value]:
        for row in matrix:
            if not isinstance(row, list) or not row or not set(map(type, row)) <= {float, int}:
                raise RequestError(field, "must have non-empty rows of numbers")
        # SGLang takes a matrix whose first number is an integer for a list of matrices.
        if type(matrix[0][0]) is not float:
            raise RequestError(field, f"must begin with a floating-point number, got {shown(matrix[0][0])}")
    return (len(value) if batch else 1), batch


def check_sampling_params(field: str, params: Any, limits: Limits) -> None:
    """Check the engine's sampling parameters, an object.

    Raises:
        RequestError: with the invalid field and its rule.
    """
    for name, value in as_object(field, params).items():
        if value is None and name in limits.unset_params:
            continue
        check = SAMPLING_PARAMS.get(name)
        if check is None:
            raise RequestError(
                f"{field}.{shown_key(name)}", "is not a sampling parameter that a request may set"
            )
        if value is not None:
            check(f"{field}.{name}", value, limits)
        elif name == "n":
            # SGLang takes null for the default of every parameter but this one.
            raise RequestError(f"{field}.n", f"must be an integer between 1 and {limits.max_n}, got None")
    grammars = [name for name in _GRAMMARS if params.get(name)]
    if len(grammars) > 1:
        raise RequestError(f"{field}.{grammars[0]}", f"must not be combined with {', '.join(grammars[1:])}")
    check_min_tokens(params, "min_new_tokens", ("max_new_tokens",), f"{field}.")


_GRAMMARS = ("json_schema", "regex", "ebnf", "structural_tag")


def _check_token_ids_logprob(value: Any, size: int | None, limits: Limits) -> None:
    name = "token_ids_logprob"
    if size is not None and isinstance(value, list) and isinstance(value[0], list):
        if len(value) != size:
            raise RequestError(name, f"must have one list per prompt, got {len(value)} for {size} prompts")
        for index, item in enumerate(value):
            if item is not None and item != []:
                check_few_token_ids(f"{name}[{index}]", item, limits)
    else:
        check_few_token_ids(name, value, limits)
