"""What a request can need is compiled before the server says that it is ready.

FlashInfer, Triton and SGLang compile kernels when they are first used: minutes, on a machine that has not kept them.
SGLang's own warm-up is one greedy request, so everything else would be compiled while a user waits.  This one is
registered where SGLang keeps such functions (``--warmups``), which runs them before the HTTP server listens.

Its requests carry a mark, like health checks: they leave nothing in Hive's caches and counts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hive.server.request_checks.batches import WARM_UP_RID

logger = logging.getLogger(__name__)

NAME = "hive"
"""What ``--warmups`` calls it."""

LONG_PROMPT = 300
"""Tokens of a prefill that is no decode step."""

_TOKENS = 3


@dataclass(frozen=True)
class Need:
    """What some request needs, and one that needs it."""

    name: str
    params: dict[str, Any] = field(default_factory=dict)
    """Of the sampling parameters."""
    fields: dict[str, Any] = field(default_factory=dict)
    """Of the request."""
    prompt: int = 8
    """Its tokens."""


def register() -> None:
    """Make ``--warmups hive`` known to SGLang."""
    from sglang.srt.entrypoints.warmup import warmup

    warmup(NAME)(warm_up)


def needs(server_args: Any, grammars: bool) -> Iterator[Need]:
    """What requests to a server with these arguments can need.

    Args:
        server_args: SGLang's.
        grammars: whether the server can constrain answers.
    """
    yield Need("sampling")
    yield Need("a long prompt", prompt=LONG_PROMPT)
    yield Need("a cached prompt", prompt=LONG_PROMPT + 5)
    yield Need("greedy sampling", {"temperature": 0.0})
    yield Need("top_p", {"top_p": 0.9})
    yield Need("top_k", {"top_k": 20})
    yield Need("min_p", {"min_p": 0.1})
    yield Need("penalties", {"frequency_penalty": 0.1, "presence_penalty": 0.1, "repetition_penalty": 1.1})
    yield Need("biases", {"logit_bias": {"5": 1.0}})
    yield Need(
        "log-probabilities", {}, {"return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": 0}
    )
    if grammars:
        yield Need("a regular expression", {"regex": "[0-9]+"})
        yield Need("a JSON schema", {"json_schema": '{"type": "object"}'})
    for adapter in server_args.lora_paths or ():
        yield Need(f"the adapter {adapter.lora_name}", {}, {"lora_path": adapter.lora_name})


async def warm_up(disaggregation_mode: str, tokenizer_manager: Any) -> None:
    """Answer a request of each kind; one that fails is logged, and does not stop the server."""
    from sglang.srt.managers.io_struct import GenerateReqInput

    if disaggregation_mode != "null" or not tokenizer_manager.is_generation:
        return
    args = tokenizer_manager.server_args
    most = tokenizer_manager.context_len // 2
    wanted = list(needs(args, tokenizer_manager.tokenizer is not None and args.grammar_backend != "none"))
    started = time.monotonic()
    for number, need in enumerate(wanted, 1):
        before = time.monotonic()
        request = GenerateReqInput(
            rid=f"{WARM_UP_RID}_{number}",
            input_ids=[7] * min(need.prompt, most),
            sampling_params={
                "max_new_tokens": _TOKENS,
                "ignore_eos": True,
                "sampling_seed": 0,
                **need.params,
            },
            log_metrics=False,
            **need.fields,
        )
        try:
            async for _ in tokenizer_manager.generate_request(request, None):
                pass
        except ValueError as error:
            logger.warning("Hive: warm-up: %s cannot be had: %s", need.name, error)
        logger.info(
            "Hive: warm-up %d of %d: %s (%.1f s)", number, len(wanted), need.name, time.monotonic() - before
        )
    logger.info("Hive: warmed up in %.0f s", time.monotonic() - started)
