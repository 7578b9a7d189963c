"""Reading a request: its identity, and the separation of tenants."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("sglang", reason="needs the server extra: uv pip install 'hive[server]'")

from sglang_patches.requests.request_state import identity_of, keep_apart


def request(tag: dict[str, Any], extra_key: str | None = None) -> Any:
    params = SimpleNamespace(custom_params={"hive": tag})
    return SimpleNamespace(sampling_params=params, extra_key=extra_key)


@pytest.mark.parametrize(
    ("tag", "identity"),
    [
        ({}, (None, None)),
        ({"agent": "a", "session": "s"}, ("a", "s")),
        ({"agent": "a", "session": "s", "tenant": "t"}, ("t|a", "t|s")),
        ({"tenant": "t"}, ("t|other", None)),
    ],
)
def test_names_hold_their_tenant(tag: dict[str, Any], identity: tuple[str | None, str | None]) -> None:
    assert identity_of(request(tag)) == identity


def test_no_two_of_tenant_and_extra_key_are_the_same_to_the_radix_cache() -> None:
    tenants = [None, "a", "b", "1:a0:", "ab"]
    extra_keys = [None, "a", "1:a0:", "0:", "0:1:a", "b"]
    seen = {}
    for tenant in tenants:
        for extra_key in extra_keys:
            req = request({} if tenant is None else {"tenant": tenant}, extra_key)
            keep_apart(req)
            seen[tenant, extra_key] = req.extra_key
    assert seen[None, None] is None
    assert len(set(seen.values())) == len(tenants) * len(extra_keys)
