"""Hook on ``decide_request_auth``: accepts the admin key on every route, and serves ``GET /hive/ui`` without a key.

The page is static and contains no server data.  A browser cannot send a key when it opens a page; the page requests
its data with the key that the reader enters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hive.server.ui.page import PATH


def around_decide_request_auth(
    original: Callable[..., Any],
    *,
    method: str,
    path: str,
    authorization_header: str | None,
    admin_api_key: str | None,
    **rest: Any,
) -> Any:
    """Allow the page, and any request with the admin key; SGLang decides about all others."""
    from sglang.srt.utils.auth import AuthDecision, AuthLevel

    if method in ("GET", "HEAD") and path == PATH:
        return AuthDecision(allowed=True)
    if not (authorization_header or "").isascii():
        # SGLang's key comparison raises an error for non-ASCII keys.
        authorization_header = None
    shown = {
        "method": method,
        "path": path,
        "authorization_header": authorization_header,
        "admin_api_key": admin_api_key,
    }
    decision = original(**shown, **rest)
    if decision.allowed or not admin_api_key:
        return decision
    # If both keys are set, SGLang accepts the admin key only on administration routes.
    return original(**shown, **{**rest, "auth_level": AuthLevel.ADMIN_OPTIONAL})
