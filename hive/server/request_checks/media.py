"""Checks of images, audio and video: SGLang would open any path that a request names, so paths are refused."""

from __future__ import annotations

from typing import Any

from hive.server.request_tag import RequestError, shown

_SCHEMES = ("data:", "http://", "https://")
_LONGEST_PATH = 4096
"""A longer text cannot be a path on any system that SGLang runs on; it is base64."""


def check_media(field: str, value: Any) -> None:
    """Check that no medium is a path on the server.

    Args:
        field: the name for errors.
        value: text, an object with a ``url`` as a key or an attribute, or lists of them, nested as in batches; raw
            bytes and precomputed features pass.

    Raises:
        RequestError: with the invalid medium and its rule.
    """
    match value:
        case str():
            if not value.lower().startswith(_SCHEMES) and len(value) <= _LONGEST_PATH:
                raise RequestError(
                    field,
                    f"must be a data:, http: or https: URL, got {shown(value)}; files of the server are opened only "
                    "with --hive-allow-media-files",
                )
        case list() | tuple():
            for index, item in enumerate(value):
                check_media(f"{field}[{index}]", item)
        case dict():
            if isinstance(value.get("url"), str):
                check_media(f"{field}.url", value["url"])
        case _:
            if isinstance(url := getattr(value, "url", None), str):
                check_media(f"{field}.url", url)
