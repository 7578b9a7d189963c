"""The limits of one server, against which requests are checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Limits:
    """The limits of one server.  The defaults suit any model; the first two fields are properties of the model."""

    vocab_size: int
    context_length: int
    max_header_bytes: int = 16384
    """Names and values of all headers of a request together."""
    max_body_bytes: int = 256 * 2**20
    """Bodies may contain images; without a limit, one request could use up the machine's memory."""
    max_control_bytes: int = 2**17
    """The same limit for Hive's own routes, whose bodies are small: 256 hints with long names are the largest."""
    unset_params: frozenset[str] = frozenset()
    """Sampling parameters that the engine's endpoints send as null, but that no request may set."""
    kv_segments: bool = False
    """Whether the server keeps KV segments, so that requests may declare some."""
    media_files: bool = False
    """Whether requests may read files of the server as images, audio and video."""
    max_n: int = 128
    """Answers per prompt."""
    max_batch: int = 4096
    """Prompts per request, and prompts times ``n``."""
    max_top_logprobs: int = 1000
    """Alternatives per position: each is a Python object per token, in three processes."""
    max_token_ids: int = 4096
    """Entries of ``token_ids_logprob``, ``stop_token_ids`` and ``logit_bias``."""
    max_stops: int = 64
    """Stop strings or patterns; every one is searched for after each token."""
    max_stop_length: int = 1024
    max_regex_length: int = 8192
    """Characters of a ``regex`` or ``ebnf``: its compilation takes quadratic time, about 1 s for this length."""
    max_schema_length: int = 65536
    """Characters of a ``json_schema`` or ``structural_tag`` given as text."""
    max_schema_depth: int = 64
    """Nesting of a schema; some thousands of levels take minutes to compile."""
    max_text_length: int = 512
    """Characters of a name, such as ``rid`` or ``extra_key``."""


Check = Callable[[str, Any, Limits], None]
"""Takes the name of the field, its value and the limits; raises :class:`RequestError`."""

INT64_MAX = 2**63 - 1
INT32_MAX = 2**31 - 1
