"""Settings of a dialogue: the request's own, and the chat endpoint's where it has none."""

from __future__ import annotations

from typing import Any

import pytest

from sglang_patches.http.samples import with_defaults

DEFAULTS = {"temperature": 0.6, "top_p": 0.9, "stop": ["<end>"]}


def test_parameters_of_the_request_win() -> None:
    joined = with_defaults({"temperature": 0.0, "top_p": None, "max_new_tokens": 3}, DEFAULTS)
    assert joined == {"temperature": 0.0, "top_p": 0.9, "max_new_tokens": 3, "stop": ["<end>"]}


@pytest.mark.parametrize(
    ("given", "stops"),
    [("x", ["<end>", "x"]), (["x", "y"], ["<end>", "x", "y"]), (None, ["<end>"]), ([], ["<end>"])],
)
def test_stops_are_joined(given: Any, stops: list[str]) -> None:
    assert with_defaults({"stop": given}, DEFAULTS)["stop"] == stops
    assert "stop" not in with_defaults({}, {"temperature": 1.0})
