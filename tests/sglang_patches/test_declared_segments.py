"""Segments that ordinary requests declare: which encodings the server makes for them, and when again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("sglang", reason="needs the server extra: uv pip install 'hive[server]'")

from sglang.srt.managers.io_struct import GenerateReqInput

from hive.server.flags.server_args import HiveServerArgs
from hive.server.kv_segments.request import KvRequest
from hive.server.request_checks import Limits
from hive.server.request_tag import RequestTag, header_tag
from sglang_patches.hooks.tokenizer_manager import around_generate_request
from sglang_patches.http.chat_ends import ChatEnds
from sglang_patches.http.declared_segments import DeclaredSegments

PROMPT = [1, 2, 3, 4, 5, 6]


class Server:
    """A tokenizer manager whose engine records requests with their tenants, and reports missing segments."""

    def __init__(self) -> None:
        self.hive_limits = Limits(vocab_size=100, context_length=64, kv_segments=True)
        self.hive_segments = DeclaredSegments(self, HiveServerArgs(kv_segments=True))
        self.hive_chat_ends = ChatEnds(self)
        self.tokenizer = None
        self.made: list[tuple[str | None, list[int]]] = []
        self.extra_keys: list[tuple[bool, str]] = []
        """Of all requests, and whether it was made here."""
        self.missing = 0

    def generate_request(self, obj: Any, request: Any = None) -> AsyncIterator[Any]:
        return around_generate_request(Server._engine, self, obj, request)

    async def _engine(self, obj: Any, _request: Any) -> AsyncIterator[Any]:
        made = obj.input_ids != PROMPT
        wire = obj.sampling_params["custom_params"]["hive_kv"]
        self.extra_keys.append((made, KvRequest.from_wire(wire).extra_key))
        if made:
            self.made.append((obj.sampling_params["custom_params"]["hive"].get("tenant"), obj.input_ids))
        obj.normalize_batch_and_arguments()
        said = {"completion_tokens": 1, "hive_kv": [{"missing": self.missing}]}
        answers = [{"meta_info": dict(said), "index": at} for at in range(obj.parallel_sample_num)]
        yield answers if len(answers) > 1 else answers[0]


async def ask(
    server: Server,
    context: str,
    *,
    tenant: str | None = None,
    body: dict[str, Any] | None = None,
    n: int = 1,
    extra_key: str | None = None,
) -> Any:
    """The answer to a request with one segment; ``tenant`` is of the headers, ``body`` the tag of the body."""
    segments = {"spans": [{"start": 2, "end": 5}], "context": context}
    custom = {"hive_segments": segments, **({"hive": body} if body else {})}
    params = {"n": n, "custom_params": custom}
    obj = GenerateReqInput(input_ids=list(PROMPT), sampling_params=params, extra_key=extra_key)
    token = header_tag.set(RequestTag(tenant=tenant, agent="a"))
    try:
        return await anext(aiter(server.generate_request(obj)))
    finally:
        header_tag.reset(token)


async def test_an_encoding_of_the_servers_own_is_made_once_for_each_tenant() -> None:
    server = Server()
    for _ in range(2):
        await ask(server, "standalone")
        await ask(server, "standalone", tenant="headers")
        await ask(server, "standalone", body={"tenant": "body"})
        await ask(server, "standalone", tenant="headers", body={"tenant": "body"})
    assert server.made == [(tenant, [3, 4, 5]) for tenant in (None, "headers", "body")]


@pytest.mark.parametrize("n", [1, 2])
async def test_encodings_are_made_once_for_each_extra_key_and_under_it(n: int) -> None:
    server = Server()
    for key in (None, "one", "two", "one"):
        await ask(server, "standalone", extra_key=key, n=n)
    assert server.made == [(None, [3, 4, 5])] * 3
    of_keys = [[(True, key), (False, key)] for key in ("", "one", "two")]
    assert server.extra_keys == [*of_keys[0], *of_keys[1], *of_keys[2], (False, "one")]


async def test_encodings_by_the_producer_are_not_computed() -> None:
    server = Server()
    await ask(server, "producer")
    assert server.made == []


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("context", ["standalone", "producer"])
async def test_encodings_that_are_no_longer_stored_are_recomputed(context: str, n: int) -> None:
    server = Server()
    await ask(server, context, tenant="t", n=n)
    server.missing = 3
    await ask(server, context, tenant="t", n=n)
    before = len(server.made)
    await ask(server, context, tenant="t", n=n)
    assert len(server.made) == before + (context == "standalone")
