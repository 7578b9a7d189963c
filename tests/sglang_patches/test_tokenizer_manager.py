"""Requests on their way to the engine: the tag of the headers is theirs, whatever their bodies say."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from hive.server.request_checks import Limits
from hive.server.request_tag import RequestError, RequestTag, header_tag
from sglang_patches.hooks.tokenizer_manager import around_generate_request
from sglang_patches.http.chat_ends import ChatEnds
from sglang_patches.requests.request_state import ARRIVAL_KEY

MANAGER = SimpleNamespace(hive_limits=Limits(vocab_size=100, context_length=64), hive_segments=None)
MANAGER.hive_chat_ends = ChatEnds(MANAGER)


async def sent(params: Any, tag: dict[str, Any], **fields: Any) -> Any:
    """The sampling parameters that SGLang got, without the stamp of their arrival."""
    obj = SimpleNamespace(
        **{"text": "hi", "input_ids": None, "top_logprobs_num": None, "sampling_params": params, **fields}
    )

    async def original(_manager: Any, obj: Any, _request: Any) -> AsyncIterator[Any]:
        yield obj.sampling_params

    token = header_tag.set(RequestTag.parse(tag))
    try:
        got = await anext(aiter(around_generate_request(original, MANAGER, obj)))
    finally:
        header_tag.reset(token)
    for item in got if isinstance(got, list) else [got]:
        assert item["custom_params"].pop(ARRIVAL_KEY)["at"] <= time.monotonic()
    return got


async def test_headers_win_field_by_field() -> None:
    params = {"top_k": 3, "custom_params": {"a": 1, "hive": {"agent": "b", "state": "s", "sample": 1}}}
    assert await sent(params, {"agent": "h", "sample": 0}) == {
        "top_k": 3,
        "custom_params": {"a": 1, "hive": {"agent": "h", "state": "s", "sample": 0}},
    }
    assert params["custom_params"]["hive"]["agent"] == "b"


@pytest.mark.parametrize("params", [None, {}, {"custom_params": None}, {"custom_params": {"hive": None}}])
async def test_headers_need_no_custom_params(params: Any) -> None:
    assert (await sent(params, {"agent": "h"}))["custom_params"]["hive"] == {"agent": "h"}
    assert not (await sent(params, {}))["custom_params"].get("hive")


async def test_headers_tag_every_prompt_of_a_batch() -> None:
    params = [{"custom_params": {"hive": {"sample": index}}} for index in range(2)]
    got = await sent(params, {"session": "s"}, text=["a", "b"])
    assert [item["custom_params"]["hive"] for item in got] == [
        {"sample": 0, "session": "s"},
        {"sample": 1, "session": "s"},
    ]


async def test_requests_for_embeddings_are_tagged_alike() -> None:
    assert (await sent(None, {"tenant": "t"}, input_ids=None))["custom_params"]["hive"] == {"tenant": "t"}


async def test_a_tokenizers_whole_return_value_is_accepted() -> None:
    obj = SimpleNamespace(
        text=None, input_ids={"input_ids": [1, 2]}, top_logprobs_num=None, sampling_params=None
    )

    async def original(_manager: Any, obj: Any, _request: Any) -> AsyncIterator[Any]:
        yield obj.input_ids

    assert await anext(aiter(around_generate_request(original, MANAGER, obj))) == [1, 2]


@pytest.mark.parametrize(
    ("params", "tag"),
    [
        (None, {"tenant": "t"}),
        ({"custom_params": {"hive": {"tenant": "t"}}}, {}),
        ([{}, {"custom_params": {"hive": {"tenant": "t"}}}], {}),
    ],
)
async def test_a_tenant_may_not_use_engine_sessions(params: Any, tag: dict[str, Any]) -> None:
    texts = ["a", "b"] if isinstance(params, list) else "a"
    with pytest.raises(RequestError, match="session_params must not be set by a tenant"):
        await sent(params, tag, text=texts, session_params={"id": "of-another"})
    assert await sent({}, {"agent": "a"}, session_params={"id": "own"})
