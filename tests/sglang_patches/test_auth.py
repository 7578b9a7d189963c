"""Which key opens what, beside SGLang's own rules."""

from __future__ import annotations

import pytest

pytest.importorskip("sglang", reason="needs the server extra: uv pip install 'hive[server]'")

from sglang.srt.utils import auth

from sglang_patches.hooks.auth import around_decide_request_auth


@pytest.mark.parametrize(
    ("keys", "level", "shown", "allowed"),
    [
        ((None, None), "normal", None, True),
        (("k", None), "normal", "k", True),
        (("k", None), "normal", "a", False),
        (("k", "a"), "normal", "k", True),
        (("k", "a"), "normal", "a", True),
        (("k", "a"), "normal", None, False),
        (("k", "a"), "normal", "x", False),
        (("k", "a"), "admin_optional", "k", False),
        (("k", "a"), "admin_optional", "a", True),
        (("k", "a"), "admin_force", "k", False),
        (("k", None), "admin_force", "k", False),
        ((None, "a"), "normal", None, True),
        (("k", "a"), "normal", "\xff", False),
        (("k", None), "admin_optional", "\xff", False),
    ],
)
def test_keys(keys: tuple[str | None, str | None], level: str, shown: str | None, allowed: bool) -> None:
    decision = around_decide_request_auth(
        auth.decide_request_auth,
        method="POST",
        path="/generate",
        authorization_header=None if shown is None else f"Bearer {shown}",
        api_key=keys[0],
        admin_api_key=keys[1],
        auth_level=auth.AuthLevel(level),
    )
    assert decision.allowed is allowed


def test_the_page_needs_no_key() -> None:
    for method, allowed in (("GET", True), ("POST", False)):
        decision = around_decide_request_auth(
            auth.decide_request_auth,
            method=method,
            path="/hive/ui",
            authorization_header=None,
            api_key="k",
            admin_api_key=None,
            auth_level=auth.AuthLevel.NORMAL,
        )
        assert decision.allowed is allowed
