"""What the chat endpoint's template makes of a dialogue."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any

from hive.server.request_tag import RequestError

_ENDPOINT_DEFAULTS = (
    *("temperature", "top_p", "top_k", "min_p", "repetition_penalty"),
    *("stop", "skip_special_tokens", "spaces_between_special_tokens"),
)
"""Sampling parameters that the chat endpoint takes from the model, its template or OpenAI's defaults."""


def render(chat: Any, messages: list[dict[str, str]], prefix_ids: Sequence[int]) -> dict[str, Any]:
    """The prompt that the chat endpoint ``chat`` would send to the engine for a dialogue.

    Returns ``text``; the token ids, as ``kept``, how many of ``prefix_ids`` they begin with, and ``ids``, those that
    follow; and ``sampling_params``, what the endpoint sets where a request does not.  The latter is None when the
    endpoint does more with an answer than to hand it on (it takes reasoning out of it, for example): then it must be
    asked itself, and there are no ids.

    ``prefix_ids`` are what the model saw and wrote earlier in this dialogue.  As many of them are kept as spell the
    beginning of the text and end where a token of the plain tokenisation ends; all else is tokenised as usual.

    Raises:
        RequestError: when the template refuses the dialogue, or there is none.
    """
    from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest

    tokenizer = chat.tokenizer_manager.tokenizer
    if tokenizer is None:
        raise RequestError("messages", "cannot be rendered: the server runs with --skip-tokenizer-init")
    listening = _Listening(tokenizer)
    chat = copy.copy(chat)
    chat.tokenizer_manager = _Stand(chat.tokenizer_manager, tokenizer=listening)
    try:
        request, _ = chat._convert_to_internal_request(ChatCompletionRequest(messages=messages), None)
    except ValueError as error:
        raise RequestError("messages", f"cannot be rendered by the model's chat template: {error}") from None
    ids = request.input_ids
    plain = not (chat.reasoning_parser or chat.is_gpt_oss or chat.is_gemma4 or chat.chat_encoding_spec)
    if not plain or ids is None:
        text = listening.text if ids is None else tokenizer.decode(ids)
        return {"text": text, "kept": 0, "ids": [], "sampling_params": None}
    kept, used = splice(prefix_ids, ids, tokenizer.convert_ids_to_tokens)
    params = request.sampling_params
    defaults = {name: params[name] for name in _ENDPOINT_DEFAULTS if params.get(name) is not None}
    return {"text": listening.text, "kept": kept, "ids": ids[used:], "sampling_params": defaults}


def splice(
    prefix: Sequence[int], ids: Sequence[int], spell: Callable[[list[int]], list[str | None]]
) -> tuple[int, int]:
    """Where two tokenisations part for good: ``prefix[:kept] + ids[used:]`` spells what ``ids`` spell.

    ``kept`` is the largest such number.  ``spell`` gives the vocabulary's spelling of each token.  (Decoded text would
    not do: a character may be spread over several tokens, and decoders clean up.)
    """
    same = _common(prefix, ids)
    ours, theirs = spell(list(prefix[same:])), spell(list(ids[same:]))
    # A token without a spelling equals none of the text.
    spelled, wanted = ("".join(piece or "\0" for piece in pieces) for pieces in (ours, theirs))
    common = _common(spelled, wanted)
    ends = {end: used for used, end in enumerate(_ends(theirs))}
    kept, end = max((kept, end) for kept, end in enumerate(_ends(ours)) if end <= common and end in ends)
    return same + kept, same + ends[end]


def _ends(pieces: list[str | None]) -> Iterable[int]:
    """Where each piece ends in the text that they spell; 0, where the first one begins, comes first."""
    return accumulate((len(piece or "\0") for piece in pieces), initial=0)


def _common(left: Sequence[Any], right: Sequence[Any]) -> int:
    """The length of the common beginning of two sequences of one type."""
    low, high = 0, min(len(left), len(right))
    # Slices are compared in C: halving is faster than a loop over characters.
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class _Stand:
    """Stands for an object, with some attributes of its own."""

    def __init__(self, original: Any, **attributes: Any) -> None:
        self._original = original
        self.__dict__.update(attributes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


class _Listening(_Stand):
    """A tokenizer that remembers the text it was last given: the rendered prompt, which upstream throws away."""

    text = ""

    def encode(self, text: str, *args: Any, **kwargs: Any) -> Any:
        self.text = text
        return self._original.encode(text, *args, **kwargs)
