"""Warm-up: compiles the kernels that requests can sample before the server reports that it is ready.

FlashInfer, Triton and SGLang compile kernels on first use.  On a machine without a kernel cache this takes minutes.
SGLang's own warm-up sends one greedy request, so users would wait for all other kernels.  This warm-up is registered
with SGLang (``--warmups``), which runs it before the HTTP server listens.

Like health checks, its requests are marked: they leave no trace in Hive's caches and counters.
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
"""Name of the warm-up for ``--warmups``."""

LONG_PROMPT = 300
"""Tokens of a prefill that is too long to run as decode rows."""

_TOKENS = 3


@dataclass(frozen=True)
class WarmUpRequest:
    """One kind of request, with an example."""

    name: str
    params: dict[str, Any] = field(default_factory=dict)
    """Sampling parameters."""
    fields: dict[str, Any] = field(default_factory=dict)
    """Fields of the request."""
    prompt: int = 8
    """Tokens of the prompt."""


def register() -> None:
    """Make ``--warmups hive`` known to SGLang."""
    from sglang.srt.entrypoints.warmup import warmup

    warmup(NAME)(warm_up)


def warm_up_requests(server_args: Any, grammars: bool) -> Iterator[WarmUpRequest]:
    """Yield one request of each kind that a server with these arguments can serve.

    Args:
        server_args: SGLang's.
        grammars: whether the server supports grammar-constrained decoding.
    """
    yield WarmUpRequest("sampling")
    yield WarmUpRequest("a long prompt", prompt=LONG_PROMPT)
    yield WarmUpRequest("a cached prompt", prompt=LONG_PROMPT + 5)
    yield WarmUpRequest("greedy sampling", {"temperature": 0.0})
    yield WarmUpRequest("top_p", {"top_p": 0.9})
    yield WarmUpRequest("top_k", {"top_k": 20})
    yield WarmUpRequest("min_p", {"min_p": 0.1})
    yield WarmUpRequest(
        "penalties", {"frequency_penalty": 0.1, "presence_penalty": 0.1, "repetition_penalty": 1.1}
    )
    yield WarmUpRequest("biases", {"logit_bias": {"5": 1.0}})
    yield WarmUpRequest(
        "log-probabilities", {}, {"return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": 0}
    )
    if grammars:
        yield WarmUpRequest("a regular expression", {"regex": "[0-9]+"})
        yield WarmUpRequest("a JSON schema", {"json_schema": '{"type": "object"}'})
    for adapter in server_args.lora_paths or ():
        yield WarmUpRequest(f"the adapter {adapter.lora_name}", {}, {"lora_path": adapter.lora_name})


async def warm_up(disaggregation_mode: str, tokenizer_manager: Any) -> None:
    """Run one request of each kind; a failing one is logged and does not stop the server."""
    from sglang.srt.managers.io_struct import GenerateReqInput

    if disaggregation_mode != "null" or not tokenizer_manager.is_generation:
        return
    args = tokenizer_manager.server_args
    max_prompt = tokenizer_manager.context_len // 2
    requests = list(
        warm_up_requests(args, tokenizer_manager.tokenizer is not None and args.grammar_backend != "none")
    )
    started = time.monotonic()
    for number, kind in enumerate(requests, 1):
        before = time.monotonic()
        request = GenerateReqInput(
            rid=f"{WARM_UP_RID}_{number}",
            input_ids=[7] * min(kind.prompt, max_prompt),
            sampling_params={
                "max_new_tokens": _TOKENS,
                "ignore_eos": True,
                "sampling_seed": 0,
                **kind.params,
            },
            log_metrics=False,
            **kind.fields,
        )
        try:
            async for _ in tokenizer_manager.generate_request(request, None):
                pass
        except ValueError as error:
            logger.warning("Hive: warm-up of %s failed: %s", kind.name, error)
        logger.info(
            "Hive: warm-up %d of %d: %s (%.1f s)",
            number,
            len(requests),
            kind.name,
            time.monotonic() - before,
        )
    logger.info("Hive: warm-up finished in %.0f s", time.monotonic() - started)
