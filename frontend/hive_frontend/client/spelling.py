"""How servers spell the settings of `Sampling`."""

from __future__ import annotations

from collections.abc import Sequence

from hive_frontend.client.base import Sampling
from hive_frontend.client.json_text import Json
from hive_frontend.dialogue import Message


def settings_of(sampling: Sampling) -> Json:
    """The settings that all endpoints spell alike, without those left to the server."""
    temperature, top_p, top_k, stop = sampling.temperature, sampling.top_p, sampling.top_k, sampling.stop
    settings: Json = {}
    if temperature is not None:
        settings["temperature"] = temperature
    if top_p is not None:
        settings["top_p"] = top_p
    if top_k is not None:
        settings["top_k"] = top_k
    if stop:
        settings["stop"] = list(stop)
    return settings


def grammar_of(sampling: Sampling) -> Json:
    """What the answer must match, as SGLang's own endpoints spell it."""
    grammar = {"regex": sampling.grammar, "json_schema": sampling.json_schema}
    return {name: value for name, value in grammar.items() if value is not None}


def spelled(messages: Sequence[Message]) -> list[Json]:
    """A dialogue as all servers take it."""
    return [{"role": message.role, "content": message.content} for message in messages]
