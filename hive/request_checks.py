"""What a request must satisfy before it may reach the engine.

SGLang 0.5.17 checks little: one request with ``top_k`` 2**31 or ``top_logprobs_num`` above the vocabulary ends the
scheduler for everybody, and ``n`` of a million keeps it busy for hours.  ``python -m bench.bad_requests`` shows
what each bad request does to it.  The checks here are exact about the fields that reach the engine's tensors,
loops and typed messages; a field that SGLang's own models check well is left to them, and so are unknown fields of
the body, which SGLang ignores.

Every function takes decoded JSON and raises :class:`RequestError`, which names the first field at fault.
"""

from __future__ import annotations

import json
import math
import re
import re._parser as regex_parser  # type: ignore[import-not-found]
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hive.media_checks import check_media
from hive.request_tag import RequestError, RequestTag, shown, shown_key


@dataclass(frozen=True)
class Limits:
    """Bounds of one server.  The defaults suit any model; the first two are the model's own."""

    vocab_size: int
    context_length: int
    max_header_bytes: int = 16384
    """All names and values of a request's headers together."""
    max_body_bytes: int = 256 * 2**20
    """Images travel in bodies; without a bound one request takes the machine's memory."""
    max_control_bytes: int = 2**16
    """The same for Hive's own routes, whose bodies are small."""
    unset_params: frozenset[str] = frozenset()
    """Sampling parameters that the engine's endpoints name though no request may set them."""
    media_files: bool = False
    """Whether requests may name files of the server as images, audio and video."""
    max_n: int = 128
    """Answers per prompt."""
    max_batch: int = 4096
    """Prompts per request, and prompts times ``n``."""
    max_top_logprobs: int = 1000
    """Alternatives per position: each is a Python object per token on its way through three processes."""
    max_token_ids: int = 4096
    """Entries of ``token_ids_logprob``, ``stop_token_ids`` and ``logit_bias``."""
    max_stops: int = 64
    """Stop strings or patterns; each is searched for after every token."""
    max_stop_length: int = 1024
    max_regex_length: int = 8192
    """Characters of a ``regex`` or ``ebnf``: compiling takes time in the square of it, about 1 s for this much."""
    max_schema_length: int = 65536
    """Characters of a ``json_schema`` or ``structural_tag`` given as text."""
    max_schema_depth: int = 64
    """Nesting of a schema; compiling takes minutes for some thousands."""
    max_text_length: int = 512
    """Characters of a name: ``rid``, ``extra_key`` and the like."""


Check = Callable[[str, Any, Limits], None]
"""Takes what to call the field, its value and the limits; raises :class:`RequestError`."""

_INT64_MAX = 2**63 - 1
_INT32_MAX = 2**31 - 1


def check_generate(body: Any, limits: Limits) -> None:
    """Check the body of ``/generate``.

    Raises:
        RequestError: naming the field and its rule.
    """
    fields = _object("body", body)
    for name, value in fields.items():
        if value is not None and name in _INTERNAL_FIELDS:
            raise RequestError(name, "is internal to the server and must not be set by a request")
    _check_no_probe(fields.get("rid"))
    size = _check_engine_fields(fields, limits)
    _check_all(fields, _GENERATE_FIELDS, limits)
    _check_all_per_prompt(fields, _GENERATE_PER_PROMPT, size, limits)


def check_completion(body: Any, limits: Limits) -> None:
    """Check the body of ``/v1/completions``.

    Raises:
        RequestError: naming the field and its rule.
    """
    fields = _object("body", body)
    prompts, batch = _count_prompts("prompt", fields.get("prompt"), limits)
    size = prompts if batch else None
    _check_all(fields, _COMPLETION_FIELDS, limits)
    _check_all_per_prompt(fields, _ROUTING_PER_PROMPT, size, limits)
    _check_fanout("n", prompts, fields.get("n"), limits)
    _check_no_probe(fields.get("rid"))
    _check_rid(fields.get("rid"), size, limits)
    _check_min_tokens(fields, "min_tokens", ("max_tokens",))


def check_chat(body: Any, limits: Limits) -> None:
    """Check the body of ``/v1/chat/completions``.

    Raises:
        RequestError: naming the field and its rule.
    """
    fields = _object("body", body)
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestError("messages", f"must be a list of at least one message, got {shown(messages)}")
    for index, message in enumerate(messages):
        _object(f"messages[{index}]", message)
    _check_all(fields, _CHAT_FIELDS, limits)
    _check_all_per_prompt(fields, _ROUTING_PER_PROMPT, None, limits)
    if fields.get("input_ids") is not None:
        _token_ids("input_ids", fields["input_ids"], limits)
    _check_no_probe(fields.get("rid"))
    _check_rid(fields.get("rid"), None, limits)
    _check_min_tokens(fields, "min_tokens", ("max_completion_tokens", "max_tokens"))


def check_vertex(body: Any, limits: Limits) -> None:
    """Check the body of ``/vertex_generate``: the prompts of a batch as ``instances``, and all else in ``parameters``.

    Raises:
        RequestError: naming the field and its rule, in the terms of ``/generate``.
    """
    fields = _object("body", body)
    instances = fields.get("instances")
    if not isinstance(instances, list):
        raise RequestError("instances", f"must be a list of objects, got {shown(instances)}")
    for index, instance in enumerate(instances):
        _object(f"instances[{index}]", instance)
    parameters = _object("parameters", fields.get("parameters") or {})
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


def check_render(body: Any, limits: Limits) -> None:
    """Check the body of ``/hive/render``: ``messages`` of text, and ``prefix_ids`` or none.

    Raises:
        RequestError: naming the field and its rule.
    """
    fields = _object("body", body)
    for name in fields:
        if name not in ("messages", "prefix_ids"):
            raise RequestError(shown_key(name), "is unknown, the fields are messages, prefix_ids")
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestError("messages", f"must be a list of at least one message, got {shown(messages)}")
    for index, message in enumerate(messages):
        field = f"messages[{index}]"
        for name in _object(field, message):
            if name not in ("role", "content"):
                raise RequestError(f"{field}.{shown_key(name)}", "is unknown, the fields are role, content")
        role = message.get("role")
        if role not in _ROLES:
            raise RequestError(
                f"{field}.role", f"must be {' or '.join(map(repr, _ROLES))}, got {shown(role)}"
            )
        _any_text(f"{field}.content", message.get("content"), limits)
    # An empty list says as much as none.
    if fields.get("prefix_ids"):
        _token_ids("prefix_ids", fields["prefix_ids"], limits)


_ROLES = ("system", "user", "assistant")


def check_request_object(obj: Any, limits: Limits) -> None:
    """The same core checks on the engine's own request object, whichever endpoint made it.

    Takes SGLang's ``GenerateReqInput`` before it is normalised (and any object with the same attributes), so that
    endpoints without a door of their own cannot reach the engine unchecked.  Of requests for embeddings only the
    media are checked: their prompts have other shapes, and nothing is sampled.

    Raises:
        RequestError: naming the field and its rule.
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
        # Addresses and state of SGLang's own processes: they choose where answers go and what is waited for.
        *(
            "http_worker_ipc",
            "encoder_urls",
            "mm_data_mooncake",
            "need_wait_for_mm_inputs",
            "num_items_assigned",
        ),
        # Objects that have no JSON form, and what SGLang derives itself.
        *("positional_embed_overrides", "multi_item_delimiter_indices", "lora_id", "return_bytes"),
        *("received_time", "external_trace_header"),
        # Names that the server's metrics were not declared with end the process that counts.
        "custom_labels",
    }
)
"""Fields of ``GenerateReqInput`` that arrive from a body, too, although only SGLang's processes may set them."""


def _check_engine_fields(fields: Mapping[str, Any], limits: Limits) -> int | None:
    """Prompt, sampling parameters and log-probabilities of a request in the engine's own terms.

    Returns the number of prompts of a batch, None for a single prompt.
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
            _check_sampling_params(f"sampling_params[{index}]", item, limits)
        answers = {item.get("n", 1) for item in params}
        if len(answers) > 1:
            raise RequestError("sampling_params", "must have the same n for every prompt")
        n = params[0].get("n") if params else None
    elif params is not None:
        _check_sampling_params("sampling_params", params, limits)
        n = params.get("n")
    else:
        n = None
    _check_fanout("sampling_params.n", prompts, n, limits)
    _check_rid(fields.get("rid"), size, limits)
    _check_all_per_prompt(fields, _PER_PROMPT_FIELDS, size, limits)
    if fields.get("token_ids_logprob"):
        _check_token_ids_logprob(fields["token_ids_logprob"], size, limits)
    return size


def _check_media(fields: Mapping[str, Any], limits: Limits) -> None:
    if not limits.media_files:
        for name in _MEDIA:
            check_media(name, fields.get(name))


def _count_engine_prompts(fields: Mapping[str, Any], limits: Limits) -> tuple[int, bool]:
    given = [name for name in _PROMPTS if fields.get(name) is not None]
    if len(given) != 1:
        got = " and ".join(given) or "none of them"
        raise RequestError(
            " or ".join(given) or "text or input_ids", f"must be given, and only one of them, got {got}"
        )
    name = given[0]
    if fields[name] == "" and any(fields.get(media) for media in _MEDIA):
        return 1, False
    if name == "input_embeds":
        return _count_embeddings(name, fields[name], limits)
    return _count_prompts(name, fields[name], limits, texts=name == "text", ids=name == "input_ids")


def _count_prompts(
    field: str, value: Any, limits: Limits, *, texts: bool = True, ids: bool = True
) -> tuple[int, bool]:
    """Check a prompt, and say how many there are and whether they came as a list."""
    kinds = " or ".join((["text"] if texts else []) + (["a list of token ids"] if ids else []))
    if isinstance(value, str) and value and texts:
        return 1, False
    if not isinstance(value, list) or not value:
        raise RequestError(field, f"must be {kinds}, or a list of such, and not empty, got {shown(value)}")
    if ids and not isinstance(value[0], str | list):
        _token_ids(field, value, limits)
        return 1, False
    if len(value) > limits.max_batch:
        raise RequestError(field, f"must have at most {limits.max_batch} prompts, got {len(value)}")
    of_ids = ids and isinstance(value[0], list)
    for index, item in enumerate(value):
        if of_ids:
            _token_ids(f"{field}[{index}]", item, limits)
        elif not texts or not isinstance(item, str) or not item:
            raise RequestError(f"{field}[{index}]", f"must be {kinds}, and not empty, got {shown(item)}")
    return len(value), True


def _count_embeddings(field: str, value: Any, limits: Limits) -> tuple[int, bool]:
    """Embeddings as SGLang tells them apart: a matrix, or a list of matrices for a batch."""
    if not isinstance(value, list) or not value or not all(isinstance(row, list) and row for row in value):
        raise RequestError(field, f"must be a matrix of numbers, or a list of such, got {shown(value)}")
    batch = isinstance(value[0][0], list)
    for matrix in value if batch else [value]:
        for row in matrix:
            if not isinstance(row, list) or not row or not set(map(type, row)) <= {float, int}:
                raise RequestError(field, "must have non-empty rows of numbers")
        # SGLang takes a matrix whose first number is written as an integer for a list of matrices.
        if type(matrix[0][0]) is not float:
            raise RequestError(field, f"must begin with a floating-point number, got {shown(matrix[0][0])}")
    return (len(value) if batch else 1), batch


def _check_sampling_params(field: str, params: Any, limits: Limits) -> None:
    for name, value in _object(field, params).items():
        if value is None and name in limits.unset_params:
            continue
        check = _SAMPLING_PARAMS.get(name)
        if check is None:
            raise RequestError(
                f"{field}.{shown_key(name)}", "is no sampling parameter that a request may set"
            )
        if value is not None:
            check(f"{field}.{name}", value, limits)
        elif name == "n":
            # SGLang takes null as "the default" for every parameter but this one.
            raise RequestError(f"{field}.n", f"must be an integer between 1 and {limits.max_n}, got None")
    grammars = [name for name in _GRAMMARS if params.get(name)]
    if len(grammars) > 1:
        raise RequestError(f"{field}.{grammars[0]}", f"must not be combined with {', '.join(grammars[1:])}")
    _check_min_tokens(params, "min_new_tokens", ("max_new_tokens",), f"{field}.")


def _check_min_tokens(
    fields: Mapping[str, Any], low_name: str, high_names: Iterable[str], prefix: str = ""
) -> None:
    low = fields.get(low_name)
    high_name, high = next(((name, fields[name]) for name in high_names if fields.get(name)), ("", None))
    if low is not None and high is not None and low > high:
        raise RequestError(prefix + low_name, f"must not exceed {high_name}, got {low} and {high}")


def _check_fanout(field: str, prompts: int, n: int | None, limits: Limits) -> None:
    if prompts * (n or 1) > limits.max_batch:
        raise RequestError(
            field, f"times the number of prompts must be at most {limits.max_batch}, got {n} times {prompts}"
        )


def _check_rid(rid: Any, size: int | None, limits: Limits) -> None:
    """``size`` is the number of prompts of a batch, None for a single prompt."""
    if rid is None:
        return
    if isinstance(rid, list):
        if size is None:
            raise RequestError("rid", "must be a string for a single prompt, got a list")
        for index, item in enumerate(rid):
            _name(f"rid[{index}]", item, limits)
        if len(rid) != size or len(set(rid)) != size:
            raise RequestError(
                "rid", f"must have one distinct name per prompt, got {len(rid)} for {size} prompts"
            )
    else:
        _name("rid", rid, limits)


def _check_no_probe(rid: Any) -> None:
    for item in rid if isinstance(rid, list) else [rid]:
        if isinstance(item, str) and item.startswith("HEALTH_CHECK"):
            raise RequestError("rid", "must not begin with HEALTH_CHECK, which marks the server's own probes")


def _check_all_per_prompt(
    fields: Mapping[str, Any], checks: Mapping[str, Check], size: int | None, limits: Limits
) -> None:
    for name, check in checks.items():
        if (value := fields.get(name)) is not None:
            _check_per_prompt(name, value, size, check, limits)


def _check_per_prompt(name: str, value: Any, size: int | None, check: Check, limits: Limits) -> None:
    """A field that is one value, or in a batch also a list with a value for each prompt."""
    if not isinstance(value, list):
        check(name, value, limits)
    elif size is None:
        raise RequestError(name, "must be a single value for a single prompt, got a list")
    elif len(value) != size:
        raise RequestError(name, f"must have one value per prompt, got {len(value)} for {size} prompts")
    else:
        for index, item in enumerate(value):
            # Null is "none" for names and addresses, but SGLang computes with the other fields.
            if item is not None or name not in _ROUTING_PER_PROMPT:
                check(f"{name}[{index}]", item, limits)


def _check_token_ids_logprob(value: Any, size: int | None, limits: Limits) -> None:
    name = "token_ids_logprob"
    if size is not None and isinstance(value, list) and isinstance(value[0], list):
        if len(value) != size:
            raise RequestError(name, f"must have one list per prompt, got {len(value)} for {size} prompts")
        for index, item in enumerate(value):
            if item is not None and item != []:
                _few_token_ids(f"{name}[{index}]", item, limits)
    else:
        _few_token_ids(name, value, limits)


def _check_all(fields: Mapping[str, Any], checks: Mapping[str, Check], limits: Limits) -> None:
    for name, value in fields.items():
        if value is not None and (check := checks.get(name)):
            check(name, value, limits)


def _object(field: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise RequestError(field, f"must be an object, got {shown(value)}")
    return value


def _integer(low: int, high: int | Callable[[Limits], int]) -> Check:
    def check(field: str, value: Any, limits: Limits) -> None:
        bound = high if isinstance(high, int) else high(limits)
        # bool is a subclass of int, and 1.0 == 1: only the exact type is an integer on the wire.
        if type(value) is not int or not low <= value <= bound:
            raise RequestError(field, f"must be an integer between {low} and {bound}, got {shown(value)}")

    return check


def _number(low: float, high: float, *, above: bool = False) -> Check:
    def check(field: str, value: Any, limits: Limits) -> None:
        fine = type(value) in (int, float) and low <= value <= high and not (above and value == low)
        if not fine:
            rule = f"above {low:g} and at most {high:g}" if above else f"between {low:g} and {high:g}"
            raise RequestError(field, f"must be a number {rule}, got {shown(value)}")

    return check


def _flag(field: str, value: Any, limits: Limits) -> None:
    if not isinstance(value, bool):
        raise RequestError(field, f"must be true or false, got {shown(value)}")


def _top_k(field: str, value: Any, limits: Limits) -> None:
    # -1 is SGLang's "all". Larger values than the vocabulary mean the same, but the tensors are 32 bits wide.
    if type(value) is not int or not (value == -1 or 1 <= value <= _INT32_MAX):
        raise RequestError(field, f"must be -1 or an integer between 1 and {_INT32_MAX}, got {shown(value)}")


def _name(field: str, value: Any, limits: Limits) -> None:
    if not isinstance(value, str) or not 0 < len(value) <= limits.max_text_length:
        raise RequestError(
            field, f"must be a string of 1 to {limits.max_text_length} characters, got {shown(value)}"
        )


def _text(field: str, value: Any, limits: Limits) -> None:
    if not isinstance(value, str) or len(value) > limits.max_text_length:
        raise RequestError(
            field, f"must be a string of at most {limits.max_text_length} characters, got {shown(value)}"
        )


def _any_text(field: str, value: Any, limits: Limits) -> None:
    if not isinstance(value, str):
        raise RequestError(field, f"must be a string, got {shown(value)}")


def _hidden_states(field: str, value: Any, limits: Limits) -> None:
    if not isinstance(value, bool) and value != "last":
        raise RequestError(field, f"must be true, false or 'last', got {shown(value)}")


def _session_params(field: str, value: Any, limits: Limits) -> None:
    for key, item in _object(field, value).items():
        check = _SESSION_PARAMS.get(key)
        if check is None:
            raise RequestError(f"{field}.{shown_key(key)}", "is unknown")
        if item is not None:
            check(f"{field}.{key}", item, limits)


def _token_ids(field: str, value: Any, limits: Limits) -> None:
    """A non-empty list of ids of the vocabulary.  Prompts are long: the loops run in C unless something is wrong."""
    if not isinstance(value, list) or not value:
        raise RequestError(field, f"must be a non-empty list of token ids, got {shown(value)}")
    if set(map(type, value)) == {int} and min(value) >= 0 and max(value) < limits.vocab_size:
        return
    at, bad = next(
        (at, item)
        for at, item in enumerate(value)
        if type(item) is not int or not 0 <= item < limits.vocab_size
    )
    raise RequestError(
        f"{field}[{at}]", f"must be a token id between 0 and {limits.vocab_size - 1}, got {shown(bad)}"
    )


def _few_token_ids(field: str, value: Any, limits: Limits) -> None:
    _token_ids(field, value, limits)
    if len(value) > limits.max_token_ids:
        raise RequestError(field, f"must have at most {limits.max_token_ids} token ids, got {len(value)}")


def _stop_token_ids(field: str, value: Any, limits: Limits) -> None:
    if value != []:
        _few_token_ids(field, value, limits)


def _strings(field: str, value: Any, limits: Limits) -> list[tuple[str, str]]:
    """The entries of a stop condition, a string or a list of strings, each with what to call it."""
    if isinstance(value, list):
        entries = [(f"{field}[{index}]", item) for index, item in enumerate(value)]
    else:
        entries = [(field, value)]
    if len(entries) > limits.max_stops:
        raise RequestError(field, f"must have at most {limits.max_stops} entries, got {len(entries)}")
    for name, item in entries:
        # The empty string occurs in every output: the answer would always be empty.
        if not isinstance(item, str) or not 0 < len(item) <= limits.max_stop_length:
            raise RequestError(
                name, f"must be a string of 1 to {limits.max_stop_length} characters, got {shown(item)}"
            )
    return entries


def _stop(field: str, value: Any, limits: Limits) -> None:
    _strings(field, value, limits)


def _stop_regex(field: str, value: Any, limits: Limits) -> None:
    for name, pattern in _strings(field, value, limits):
        try:
            with warnings.catch_warnings():
                # Python warns of patterns that a future version may read differently.
                warnings.simplefilter("ignore")
                re.compile(pattern)
            ways = _ways_to_match(regex_parser.parse(pattern))
        except (re.error, RecursionError, OverflowError) as error:
            raise RequestError(name, f"must be a regular expression, got {shown(pattern)}: {error}") from None
        if ways > _MAX_WAYS:
            raise RequestError(
                name,
                "must not backtrack without bound: bound its repeats, {0,20}, or make them possessive, *+; "
                f"got {shown(pattern)}",
            )


_MAX_WAYS = 32768
_WAYS_UNBOUNDED = 1024


def _ways_to_match(pattern: Iterable[Any]) -> int:
    """Into how many ways a backtracking matcher may run at one position: the search after every token costs this.

    One unbounded repeat is affordable, a second one multiplies, and a repeat of a repeat is exponential.  Groups
    that do not backtrack (possessive repeats, atomic groups) count once.
    """
    ways = 1
    for operator, argument in pattern:
        match str(operator):
            case "MAX_REPEAT" | "MIN_REPEAT":
                low, high, body = argument
                span = (
                    _WAYS_UNBOUNDED
                    if high >= regex_parser.MAXREPEAT
                    else min(high - low + 1, _WAYS_UNBOUNDED)
                )
                inner = _ways_to_match(body)
                if inner > 1:
                    # Each of the repetitions may go each of its ways.
                    repetitions = _WAYS_UNBOUNDED if high >= regex_parser.MAXREPEAT else high
                    inner = _MAX_WAYS + 1 if repetitions > 12 else inner**repetitions
                ways *= span * inner
            case "SUBPATTERN":
                ways *= _ways_to_match(argument[3])
            case "BRANCH":
                ways *= sum(_ways_to_match(branch) for branch in argument[1])
            case "ASSERT" | "ASSERT_NOT":
                ways *= _ways_to_match(argument[1])
            case "ATOMIC_GROUP":
                ways *= min(_ways_to_match(argument), _WAYS_UNBOUNDED)
            case "GROUPREF_EXISTS":
                ways *= sum(_ways_to_match(branch) for branch in argument[1:] if branch is not None)
            case "POSSESSIVE_REPEAT":
                ways *= min(_ways_to_match(argument[2]), _WAYS_UNBOUNDED)
        if ways > _MAX_WAYS:
            return _MAX_WAYS + 1
    return ways


def _logit_bias(field: str, value: Any, limits: Limits) -> None:
    entries = _object(field, value)
    if len(entries) > limits.max_token_ids:
        raise RequestError(field, f"must have at most {limits.max_token_ids} entries, got {len(entries)}")
    for key, bias in entries.items():
        if not (_DECIMAL.fullmatch(key) and int(key) < limits.vocab_size):
            raise RequestError(
                field, f"must have token ids between 0 and {limits.vocab_size - 1} as keys, got {shown(key)}"
            )
        _bias(f"{field}.{key}", bias, limits)


_DECIMAL = re.compile(r"[0-9]{1,9}", re.ASCII)
_bias = _number(-1e6, 1e6)


def _regex(field: str, value: Any, limits: Limits) -> None:
    if not isinstance(value, str) or len(value) > limits.max_regex_length:
        raise RequestError(
            field, f"must be a string of at most {limits.max_regex_length} characters, got {_measured(value)}"
        )


def _schema_text(field: str, value: Any, limits: Limits) -> None:
    if not isinstance(value, str) or len(value) > limits.max_schema_length:
        raise RequestError(
            field,
            f"must be a string of at most {limits.max_schema_length} characters, got {_measured(value)}",
        )
    # SGLang takes the empty string for "no grammar" and this word for "any JSON".
    if value in ("", "$$ANY$$"):
        return
    try:
        schema = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise RequestError(
            field, f"must be JSON in a string, got {shown(value)}: {shown(str(error))}"
        ) from None
    _shallow(field, schema, limits)


def _shallow(field: str, value: Any, limits: Limits) -> None:
    """Refuse JSON that is nested too deeply, level by level: recursion could end before the nesting does."""
    level = [value]
    for _ in range(limits.max_schema_depth):
        level = [
            inner
            for item in level
            if isinstance(item, dict | list)
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return
    raise RequestError(field, f"must be nested at most {limits.max_schema_depth} levels deep")


def _measured(value: Any) -> str:
    return f"{len(value)} characters" if isinstance(value, str) else shown(value)


def _shallow_object(field: str, value: Any, limits: Limits) -> None:
    _object(field, value)
    _shallow(field, value, limits)


_GRAMMARS = ("json_schema", "regex", "ebnf", "structural_tag")


def check_custom_params(field: str, value: Any, limits: Limits) -> None:
    """Custom parameters as SGLang's typed messages carry them: scalars, and lists or objects of scalars.

    Raises:
        RequestError: naming the entry and its rule; the tag under ``hive`` is checked by its own rules.
    """
    for key, item in _object(field, value).items():
        name = f"{field}.{shown_key(key)}"
        if key == "hive":
            if item is not None:
                RequestTag.parse(item, name)
        elif key.startswith("__"):
            raise RequestError(name, "is reserved: keys must not begin with two underscores")
        elif isinstance(item, list):
            for index, entry in enumerate(item):
                _scalar(f"{name}[{index}]", entry)
        elif isinstance(item, dict):
            for inner, entry in item.items():
                _scalar(f"{name}.{shown_key(inner)}", entry)
        else:
            _scalar(name, item)


def _scalar(field: str, value: Any) -> None:
    fine = value is None or type(value) in (bool, str)
    fine = fine or (type(value) is int and -(2**63) <= value <= _INT64_MAX)
    fine = fine or (type(value) is float and math.isfinite(value))
    if not fine:
        raise RequestError(
            field, f"must be a string, a number of 64 bits, true, false or null, got {shown(value)}"
        )


_seed = _integer(0, _INT64_MAX)
_n = _integer(1, lambda limits: limits.max_n)
_tokens = _integer(0, _INT32_MAX)
_top_logprobs = _integer(0, lambda limits: min(limits.max_top_logprobs, limits.vocab_size))

_SHARED: dict[str, Check] = {
    "n": _n,
    # Above 100 every distribution is flat already; 32-bit floats end far below the largest JSON number.
    "temperature": _number(0, 100),
    "top_p": _number(0, 1, above=True),
    "top_k": _top_k,
    "min_p": _number(0, 1),
    "frequency_penalty": _number(-2, 2),
    "presence_penalty": _number(-2, 2),
    # Logits are divided by it.
    "repetition_penalty": _number(0.01, 2),
    "stop": _stop,
    "stop_token_ids": _stop_token_ids,
    "stop_regex": _stop_regex,
    "ignore_eos": _flag,
    "skip_special_tokens": _flag,
    "no_stop_trim": _flag,
    "logit_bias": _logit_bias,
    "regex": _regex,
    "ebnf": _regex,
    "custom_params": check_custom_params,
}
"""Sampling parameters that have the same name in ``sampling_params`` and in OpenAI's bodies."""

_SAMPLING_PARAMS: dict[str, Check] = {
    **_SHARED,
    "max_new_tokens": _tokens,
    "min_new_tokens": _tokens,
    "sampling_seed": _seed,
    "spaces_between_special_tokens": _flag,
    "stream_interval": _integer(1, _INT32_MAX),
    "json_schema": _schema_text,
    "structural_tag": _schema_text,
}
"""All that ``sampling_params`` may hold: SGLang answers 500 to others, or takes them for its internal state."""

_PER_PROMPT_FIELDS: dict[str, Check] = {
    "return_logprob": _flag,
    # -1 means "only the output".
    "logprob_start_len": _integer(-1, lambda limits: limits.context_length),
    "top_logprobs_num": _top_logprobs,
}

_SESSION_PARAMS: dict[str, Check] = {
    "id": _text,
    "rid": _text,
    "offset": _integer(-1, _INT32_MAX),
    "replace": _flag,
    "drop_previous_output": _flag,
}

_ROUTING: dict[str, Check] = {
    "stream": _flag,
    "session_id": _text,
    "session_params": _session_params,
    "priority": _integer(-(2**31), _INT32_MAX),
    "routed_dp_rank": _integer(0, _INT32_MAX),
    "disagg_prefill_dp_rank": _integer(0, _INT32_MAX),
}
"""Where and when a request runs."""

_ROUTING_PER_PROMPT: dict[str, Check] = {
    "extra_key": _text,
    "lora_path": _text,
    "custom_logit_processor": _any_text,
    "bootstrap_host": _text,
    "bootstrap_port": _integer(0, 65535),
    "bootstrap_room": _integer(0, _INT64_MAX),
}
"""SGLang takes a list for these, and sends it on as one value when there is only one prompt."""

_GENERATE_FIELDS: dict[str, Check] = {
    **_ROUTING,
    "routing_key": _text,
    "conversation_id": _text,
    "max_thinking_tokens": _tokens,
    "routed_experts_start_len": _tokens,
}

_GENERATE_PER_PROMPT: dict[str, Check] = {
    **_ROUTING_PER_PROMPT,
    "return_sampling_mask": _flag,
    "return_hidden_states": _hidden_states,
}

_OPENAI: dict[str, Check] = {
    **_SHARED,
    **_ROUTING,
    "seed": _seed,
    "cache_salt": _text,
    "data_parallel_rank": _integer(0, _INT32_MAX),
    "routed_experts_start_len": _tokens,
    "return_hidden_states": _hidden_states,
    "max_tokens": _integer(1, _INT32_MAX),
    "min_tokens": _tokens,
    "echo": _flag,
    "response_format": _shallow_object,
}

_COMPLETION_FIELDS: dict[str, Check] = {**_OPENAI, "logprobs": _top_logprobs, "json_schema": _schema_text}

_CHAT_FIELDS: dict[str, Check] = {
    **_OPENAI,
    "max_completion_tokens": _integer(1, _INT32_MAX),
    "logprobs": _flag,
    "top_logprobs": _top_logprobs,
    "tools": _shallow,
    "chat_template_kwargs": _shallow_object,
}
