"""Images, audio and video: what is opened for a request, and what is not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hive.server.request_checks import Limits, check_request_object
from hive.server.request_checks.media import check_media
from hive.server.request_tag import RequestError

FILES = [
    "file:///etc/passwd",
    "FILE:///etc/passwd",
    "/etc/passwd",
    "secret.png",
    "etc/passwd",
    "~/.ssh/id",
    "",
]


@pytest.mark.parametrize("path", FILES)
@pytest.mark.parametrize(
    ("wrap", "field"),
    [
        (lambda path: path, "image_data"),
        (lambda path: ["data:,x", path], "image_data[1]"),
        (lambda path: [["data:,x"], [path]], "image_data[1][0]"),
        (lambda path: {"url": path}, "image_data.url"),
        (lambda path: [SimpleNamespace(url=path)], "image_data[0].url"),
    ],
)
def test_files_are_refused(path: str, wrap: Any, field: str) -> None:
    with pytest.raises(RequestError, match="--hive-allow-media-files") as refused:
        check_media("image_data", wrap(path))
    assert refused.value.field == field


@pytest.mark.parametrize(
    "value",
    [
        None,
        "data:image/png;base64,AAAA",
        "https://example.org/a.png",
        "HTTP://example.org/a.png",
        "/9j/" + "A" * 5000,
        b"raw",
        [None, [b"raw"]],
        {"format": "processor_output", "feature": [[0.5]]},
        {"url": "data:,x"},
    ],
)
def test_what_a_request_brings_along_passes(value: Any) -> None:
    check_media("image_data", value)


@pytest.mark.parametrize("name", ["image_data", "video_data", "audio_data"])
def test_requests_of_every_endpoint_are_checked(name: str) -> None:
    limits = Limits(vocab_size=100, context_length=64)
    request = SimpleNamespace(text="hi", top_logprobs_num=None, **{name: ["file:///etc/passwd"]})
    embedding = SimpleNamespace(text="hi", **{name: "file:///etc/passwd"})
    for obj in (request, embedding):
        with pytest.raises(RequestError, match=name):
            check_request_object(obj, limits)
        check_request_object(obj, Limits(vocab_size=100, context_length=64, media_files=True))
