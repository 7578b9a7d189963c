"""Ends answers early whose last tokens the grammar dictates.

Where a grammar allows a single token, sampling can only draw that token.  If it does so at every position up to the end
of an answer (the rest of a word, a closing bracket, the stop token), the request gets these tokens at once and ends,
without the decode steps that would draw them.  Dictated tokens inside an answer are left to the model, because the rest
of the answer needs their KV.

Only requests that the Logits Cache serves get them: with ``replay: off``, every token is drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch
import xgrammar
from numpy.typing import NDArray

from hive.server.logits_cache.cache import LogitsCache
from hive.server.logits_cache.head import Head
from hive.server.logits_cache.packing import pack

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req

MAX_FORCED = 8
"""Most tokens at the end of an answer that are not drawn; also bounds the look-ahead at each token."""


def finish_if_forced(req: Req, finish: Callable[[], None]) -> None:
    """End a request whose remaining tokens are dictated; otherwise, leave it as it is.

    Args:
        req: a request whose grammar has not accepted its last output token yet.
        finish: updates the request's finish state after one more output token.
    """
    if not _eligible(req):
        return
    tokens = forced_tokens(req.grammar.matcher, req.output_ids[-1], req.grammar.vocab_size)
    before = len(req.output_ids)
    for token in tokens:
        req.output_ids.append(token)
        finish()
        if req.finished():
            req.hive.forced = len(req.output_ids) - before
            return
    del req.output_ids[before:]


def record_forced(cache: LogitsCache, req: Req) -> None:
    """Record the rows of a request's forced tokens: the distributions that they would have been drawn from."""
    output, attached = req.output_ids, req.hive
    for length in range(len(output) - attached.forced, len(output)):
        only = Head(
            np.array(output[length : length + 1], np.int32),
            np.zeros(1, np.float32),
            support=1,
            normalisers={attached.cached.rule.temperature: 1.0},
        )
        cache.record(attached.cached, output[: length + 1], pack(only))


def _eligible(req: Req) -> bool:
    from sglang.srt.constrained.xgrammar_backend import XGrammarGrammar

    if not isinstance(req.grammar, XGrammarGrammar) or req.return_logprob:
        return False
    attached = getattr(req, "hive", None)
    params = req.sampling_params
    return (
        attached is not None
        and attached.cached is not None
        # A distinct sample reports the probability of each token that it draws.
        and attached.cached.sample is None
        and not params.ignore_eos
        and not params.min_new_tokens
    )


def forced_tokens(matcher: xgrammar.GrammarMatcher, token: int, vocab_size: int) -> list[int]:
    """Return the only tokens that a grammar allows behind an output that ends with ``token``, up to the first choice.

    The matcher, which has not accepted ``token`` yet, is left unchanged.
    """
    if matcher.is_terminated() or not matcher.accept_token(token):
        return []
    forced: list[int] = []
    while len(forced) < MAX_FORCED and not matcher.is_terminated():
        only = _only_token(matcher, vocab_size)
        if only is None:
            break
        matcher.accept_token(only)
        forced.append(only)
    matcher.rollback(1 + len(forced))
    return forced


def _only_token(matcher: xgrammar.GrammarMatcher, vocab_size: int) -> int | None:
    """Return the token that the grammar allows next if it is the only one."""
    bitmask, words = _scratch(vocab_size)
    if not matcher.fill_next_token_bitmask(bitmask, 0):
        return None
    (used,) = words.nonzero()
    if len(used) != 1:
        return None
    word = int(words[used[0]]) & 0xFFFFFFFF
    return None if word & (word - 1) else 32 * int(used[0]) + word.bit_length() - 1


@cache
def _scratch(vocab_size: int) -> tuple[torch.Tensor, NDArray[np.int32]]:
    """Return a scratch bitmask, int32 ``[1, ceil(vocab / 32)]``, and its only row, which shares its memory."""
    bitmask = torch.zeros(xgrammar.get_bitmask_shape(1, vocab_size), dtype=xgrammar.bitmask_dtype)
    return bitmask, bitmask[0].numpy()
