"""Hook on ``OpenAIServingCompletion._build_completion_response``: adds ``meta_info.hive`` to ``/v1/completions``.

Chat completions return ``meta_info`` on request; upstream's completions never do.
"""

from __future__ import annotations

from typing import Any

from sglang.srt.entrypoints.openai.protocol import CompletionResponse, CompletionResponseChoice


class AnnotatedChoice(CompletionResponseChoice):  # type: ignore[misc]
    """A choice with ``meta_info``."""

    meta_info: dict[str, Any]


class AnnotatedCompletion(CompletionResponse):  # type: ignore[misc]
    """A completion with annotated choices, as a type: pydantic serializes by declared type."""

    choices: list[AnnotatedChoice]


def after_build_completion_response(
    response: Any, _self: Any, _request: Any, ret: list[dict[str, Any]], *_args: Any, **_kwargs: Any
) -> Any:
    """Add ``choices[i].meta_info = {"hive": {...}}``, the annotation from the tokenizer manager."""
    choices = [
        AnnotatedChoice.model_construct(**dict(choice), meta_info={"hive": item["meta_info"].get("hive", {})})
        for choice, item in zip(response.choices, ret, strict=True)
    ]
    return AnnotatedCompletion.model_construct(**{**dict(response), "choices": choices})
