"""How servers spell the settings of `Sampling`."""

from __future__ import annotations

from hive_frontend.client.base import Sampling
from hive_frontend.client.transport import Json


def settings_of(sampling: Sampling) -> Json:
    """The settings that all endpoints spell alike, without those left to the server."""
    settings = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "stop": list(sampling.stop) or None,
    }
    return {name: value for name, value in settings.items() if value is not None}


def grammar_of(sampling: Sampling) -> Json:
    """What the answer must match, as SGLang's own endpoints spell it."""
    grammar = {"regex": sampling.grammar, "json_schema": sampling.json_schema}
    return {name: value for name, value in grammar.items() if value is not None}
