"""Bounds of one server, which all checks are made against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


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
    kv_segments: bool = False
    """Whether the server keeps segments, so that requests may declare some."""
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

INT64_MAX = 2**63 - 1
INT32_MAX = 2**31 - 1
