"""Checks of OpenAI's endpoints, and of ``/hive/render``, whose messages have the same form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hive.server.request_checks.batches import (
    check_all,
    check_all_per_prompt,
    check_fanout,
    check_min_tokens,
    check_no_probe,
    check_rid,
    check_segments,
    count_prompts,
)
from hive.server.request_checks.fields import check_any_text, check_token_ids
from hive.server.request_checks.limits import Limits
from hive.server.request_checks.parameters import CHAT_FIELDS, COMPLETION_FIELDS, ROUTING_PER_PROMPT
from hive.server.request_tag import RequestError, as_object, check_known, shown


def check_completion(body: Any, limits: Limits) -> None:
    """Check the body of ``/v1/completions``.

    Raises:
        RequestError: with the invalid field and its rule.
    """
    fields = as_object("body", body)
    prompts, batch = count_prompts("prompt", fields.get("prompt"), limits)
    size = prompts if batch else None
    check_all(fields, COMPLETION_FIELDS, limits)
    check_all_per_prompt(fields, ROUTING_PER_PROMPT, size, limits)
    prompt = fields["prompt"]
    ids = prompt if isinstance(prompt, list) else None
    # Checked here, because errors of the engine's own check lose their field on OpenAI's routes.
    check_segments("custom_params", fields.get("custom_params"), ids, size)
    check_fanout("n", prompts, fields.get("n"), limits)
    check_no_probe(fields.get("rid"))
    check_rid(fields.get("rid"), size, limits)
    check_min_tokens(fields, "min_tokens", ("max_tokens",))


def check_chat(body: Any, limits: Limits) -> None:
    """Check the body of ``/v1/chat/completions``.

    Raises:
        RequestError: with the invalid field and its rule.
    """
    fields = as_object("body", body)
    for field, message in _messages(fields):
        as_object(field, message)
    check_all(fields, CHAT_FIELDS, limits)
    check_all_per_prompt(fields, ROUTING_PER_PROMPT, None, limits)
    if fields.get("input_ids") is not None:
        check_token_ids("input_ids", fields["input_ids"], limits)
    check_no_probe(fields.get("rid"))
    check_rid(fields.get("rid"), None, limits)
    check_min_tokens(fields, "min_tokens", ("max_completion_tokens", "max_tokens"))


def check_render(body: Any, limits: Limits) -> None:
    """Check the body of ``/hive/render``: ``messages`` of text, and optional ``prefix_ids``.

    Raises:
        RequestError: with the invalid field and its rule.
    """
    fields = as_object("body", body)
    check_known(fields, ("messages", "prefix_ids"))
    check_dialogue(fields, limits)


def check_dialogue(fields: Mapping[str, Any], limits: Limits) -> None:
    """Check ``messages`` of text, and optional ``prefix_ids``, among the fields of a body.

    Raises:
        RequestError: with the invalid field and its rule.
    """
    for field, message in _messages(fields):
        check_known(as_object(field, message), ("role", "content"), f"{field}.")
        role = message.get("role")
        if role not in _ROLES:
            raise RequestError(
                f"{field}.role", f"must be {' or '.join(map(repr, _ROLES))}, got {shown(role)}"
            )
        check_any_text(f"{field}.content", message.get("content"), limits)
    # An empty list means the same as none.
    if fields.get("prefix_ids"):
        check_token_ids("prefix_ids", fields["prefix_ids"], limits)


def _messages(fields: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the messages of a body, each with its name for errors."""
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestError("messages", f"must be a list of at least one message, got {shown(messages)}")
    return [(f"messages[{index}]", message) for index, message in enumerate(messages)]


_ROLES = ("system", "user", "assistant")
