"""Every route of SGLang's HTTP server, and how the request middleware treats it.

The request middleware rejects routes that are in none of these tables, so a new version's routes are reviewed before
they are served.  The tables contain the routes of all supported versions.  Hive's own routes are under ``/hive/``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

from hive.server.request_checks import (
    Limits,
    check_chat,
    check_completion,
    check_decode,
    check_generate,
    check_prefill,
    check_render,
    check_samples,
    check_vertex,
)

VERTEX = os.environ.get("AIP_PREDICT_ROUTE", "/vertex_generate")

CHECKED: dict[str, Callable[[Any, Limits], None]] = {
    "/generate": check_generate,
    "/v1/completions": check_completion,
    "/v1/chat/completions": check_chat,
    # SageMaker's name for chat completions.
    "/invocations": check_chat,
    VERTEX: check_vertex,
    "/hive/render": check_render,
    "/hive/generate": check_samples,
    "/hive/prefill": check_prefill,
    "/hive/decode": check_decode,
}
"""Routes whose bodies are checked field by field, with their check functions."""

SAMPLES = "/hive/generate"
"""The route whose request ids are those of its samples."""

CHATS = ("/v1/chat/completions", "/invocations")
"""Routes that omit ``meta_info`` unless the request asks for it."""

DIALOGUES = frozenset({*CHATS, "/v1/messages", "/v1/responses"})
"""Routes of chats that may call tools."""

GENERATING = frozenset(
    {
        *("/encode", "/classify"),
        *("/v1/embeddings", "/v1/classify", "/v1/score", "/v1/rerank"),
        *("/v1/responses", "/v1/messages", "/v1/decisions", "/v1/systemone"),
        os.environ.get("SGLANG_OLLAMA_CHAT_ROUTE", "/api/chat"),
        os.environ.get("SGLANG_OLLAMA_GENERATE_ROUTE", "/api/generate"),
        "/v1/audio/transcriptions",
        "/v1/realtime",
    }
)
"""Routes whose requests :mod:`sglang_patches.hooks.tokenizer_manager` checks on their way to the engine."""

PICKLED = frozenset(
    {
        "/load_lora_adapter_from_tensors",
        "/update_weights_from_tensor",
        # Fetches pickles from the sockets named in the request.
        "/update_weights_from_ipc",
    }
)
"""Routes that unpickle request data, which can run the sender's code."""

OTHERS = frozenset(
    {
        *("/openapi.json", "/docs", "/docs/oauth2-redirect", "/redoc"),
        os.environ.get("SGLANG_OLLAMA_ROOT_ROUTE", "/"),
        *("/health", "/health_generate", "/ready", "/ping", "/metrics"),
        *("/model_info", "/get_model_info", "/weight_version", "/get_weight_version"),
        *("/server_info", "/get_server_info", "/get_load", "/v1/loads", "/v1/models"),
        *("/set_internal_state", "/configure_logging", "/set_trace_level", "/freeze_gc", "/slow_down"),
        *("/flush_cache", "/abort_request", "/pause_generation", "/continue_generation"),
        *("/add_external_corpus", "/remove_external_corpus", "/list_external_corpora"),
        *("/clear_hicache_storage_backend", "/hicache/storage-backend", "/hicache/storage-backend/clear"),
        *("/start_profile", "/stop_profile"),
        *(f"/{verb}_expert_distribution_record" for verb in ("start", "stop", "dump")),
        *("/update_weights_from_disk", "/update_weights_from_distributed", "/update_weight_version"),
        *("/init_weights_update_group", "/destroy_weights_update_group", "/get_weights_by_name"),
        *("/init_weights_send_group_for_remote_instance", "/send_weights_to_remote_instance"),
        *("/remote_instance_transfer_engine_info", "/get_remote_instance_transfer_engine_info"),
        *("/release_memory_occupation", "/resume_memory_occupation", "/weights_checker"),
        *("/begin_weight_update", "/end_weight_update", "/pd_role_switch", "/get_hicache_l3_cache_layout"),
        *("/load_lora_adapter", "/unload_lora_adapter"),
        *("/scale_elastic_ep", "/is_scaling_elastic_ep"),
        *("/open_session", "/close_session"),
        *("/parse_function_call", "/separate_reasoning"),
        *("/tokenize", "/v1/tokenize", "/detokenize", "/v1/detokenize", "/v1/messages/count_tokens"),
        os.environ.get("SGLANG_OLLAMA_TAGS_ROUTE", "/api/tags"),
        os.environ.get("SGLANG_OLLAMA_SHOW_ROUTE", "/api/show"),
    }
)
"""Routes that neither generate nor unpickle."""

_OWN = re.compile(r"/hive/.+")
_PATTERNS = {
    "/v1/models/{model:path}": re.compile(r"/v1/models/.+"),
    "/v1/responses/{response_id}": re.compile(r"/v1/responses/[^/]+"),
    "/v1/responses/{response_id}/cancel": re.compile(r"/v1/responses/[^/]+/cancel"),
}

SHOWING_ARGUMENTS = frozenset({"/server_info", "/get_server_info"})
"""Routes whose responses contain the server's arguments, including keys."""

OF_ALL_TENANTS = frozenset({"/hive/events", "/metrics"})
"""Routes that show all tenants, so requests of a tenant may not use them."""

FOR_OPERATORS = frozenset({"/hive/events"})
"""Routes of :data:`OF_ALL_TENANTS` that need the operator's key; metrics scrapers have no key."""

PAGES = frozenset({"/", "/docs", "/redoc", "/hive/ui"})
"""Routes that people open in a browser."""


def route_of(path: str) -> str | None:
    """Return the route that serves a path, as SGLang spells it; the path itself for Hive's routes; None if unknown."""
    # SGLang redirects paths that end in a slash, and serves metrics under such a path.
    plain = path.rstrip("/") or "/"
    if (
        plain in CHECKED
        or plain in GENERATING
        or plain in PICKLED
        or plain in OTHERS
        or _OWN.fullmatch(plain)
    ):
        return plain
    return next((route for route, pattern in _PATTERNS.items() if pattern.fullmatch(plain)), None)
