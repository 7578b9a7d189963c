"""Renders dialogues with the chat endpoint's template."""

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
"""Sampling parameters whose defaults come from the model, its chat template or OpenAI's API."""


def render(chat: Any, messages: list[dict[str, str]], prefix_ids: Sequence[int]) -> dict[str, Any]:
    """Render a dialogue to the prompt that the chat endpoint ``chat`` would send to the engine.

    Args:
        chat: SGLang's chat endpoint.
        messages: the dialogue.
        prefix_ids: token ids that the model read and generated earlier in this dialogue. The longest prefix of them is
            kept that spells the beginning of the text and ends at a token boundary of the plain tokenization. The rest
            of the text is tokenized as usual.

    Returns:
        ``text``: the rendered prompt. ``kept``: how many of ``prefix_ids`` the prompt begins with. ``ids``: the token
        ids after them. ``sampling_params``: the endpoint's defaults for parameters that a request does not set. The
        defaults are None and ``ids`` is empty if the endpoint also post-processes the output (with a reasoning parser,
        for example); the request must then go to the chat endpoint.

    Raises:
        RequestError: if there is no chat template, or if it rejects the dialogue.
    """
    from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest

    tokenizer = chat.tokenizer_manager.tokenizer
    if tokenizer is None:
        raise RequestError("messages", "cannot be rendered: the server runs with --skip-tokenizer-init")
    recording = _RecordingTokenizer(tokenizer)
    chat = copy.copy(chat)
    chat.tokenizer_manager = _Proxy(chat.tokenizer_manager, tokenizer=recording)
    try:
        request, _ = chat._convert_to_internal_request(ChatCompletionRequest(messages=messages), None)
    except ValueError as error:
        raise RequestError("messages", f"cannot be rendered by the model's chat template: {error}") from None
    ids = request.input_ids
    plain = not (chat.reasoning_parser or chat.is_gpt_oss or chat.is_gemma4 or chat.chat_encoding_spec)
    if not plain or ids is None:
        text = recording.text if ids is None else tokenizer.decode(ids)
        return {"text": text, "kept": 0, "ids": [], "sampling_params": None}
    kept, used = splice(prefix_ids, ids, tokenizer.convert_ids_to_tokens)
    params = request.sampling_params
    defaults = {name: params[name] for name in _ENDPOINT_DEFAULTS if params.get(name) is not None}
    return {"text": recording.text, "kept": kept, "ids": ids[used:], "sampling_params": defaults}


def splice(
    prefix: Sequence[int], ids: Sequence[int], spell: Callable[[list[int]], list[str | None]]
) -> tuple[int, int]:
    """Find where two tokenizations can be joined: ``prefix[:kept] + ids[used:]`` spells the same text as ``ids``.

    Returns the largest possible ``kept``, and ``used``.  ``spell`` returns the vocabulary's spelling of each token.
    (Decoded text does not work: a character may span several tokens, and decoders clean up.)
    """
    same = _common_prefix(prefix, ids)
    ours, theirs = spell(list(prefix[same:])), spell(list(ids[same:]))
    # A token without a spelling never matches the text.
    spelled, target = ("".join(piece or "\0" for piece in pieces) for pieces in (ours, theirs))
    common = _common_prefix(spelled, target)
    ends = {end: used for used, end in enumerate(_ends(theirs))}
    kept, end = max((kept, end) for kept, end in enumerate(_ends(ours)) if end <= common and end in ends)
    return same + kept, same + ends[end]


def _ends(pieces: list[str | None]) -> Iterable[int]:
    """Return the end offset of each piece in the text that they spell, beginning with 0."""
    return accumulate((len(piece or "\0") for piece in pieces), initial=0)


def _common_prefix(left: Sequence[Any], right: Sequence[Any]) -> int:
    """Return the length of the common prefix of two sequences of the same type."""
    low, high = 0, min(len(left), len(right))
    # Bisection compares slices in C, which is faster than a loop over characters.
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class _Proxy:
    """A proxy of an object that overrides some of its attributes."""

    def __init__(self, original: Any, **attributes: Any) -> None:
        self._original = original
        self.__dict__.update(attributes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


class _RecordingTokenizer(_Proxy):
    """A tokenizer that records the last text it encoded: the rendered prompt, which upstream discards."""

    text = ""

    def encode(self, text: str, *args: Any, **kwargs: Any) -> Any:
        self.text = text
        return self._original.encode(text, *args, **kwargs)
