"""Images, audio and video of a request: SGLang opens whatever path it is given, so paths are refused here."""

from __future__ import annotations

from typing import Any

from hive.server.request_tag import RequestError, shown

_SCHEMES = ("data:", "http://", "https://")
_LONGEST_PATH = 4096
"""Longer text is no path on any system that SGLang runs on, but base64."""


def check_media(field: str, value: Any) -> None:
    """See that no medium is a path of the server's.

    Args:
        field: what to call it.
        value: text, an object with a ``url`` as a key or an attribute, or lists of such, nested as in batches; raw
            bytes, and features that are computed already, pass.

    Raises:
        RequestError: naming the medium and its rule.
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
