"""Hook on ``decide_request_auth``: the operator's key opens every route, and ``GET /hive/ui`` needs none.

The page is the same for everybody and holds nothing of the server, and a browser cannot send a key with its address;
what it shows it asks for with the key that its reader types in.
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
    """Let the page through, and whoever has the admin key; all else is SGLang's decision."""
    from sglang.srt.utils.auth import AuthDecision, AuthLevel

    if method in ("GET", "HEAD") and path == PATH:
        return AuthDecision(allowed=True)
    if not (authorization_header or "").isascii():
        # SGLang's comparison raises for such a key.
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
    # With both keys, SGLang takes the admin key for administration alone.
    return original(**shown, **{**rest, "auth_level": AuthLevel.ADMIN_OPTIONAL})
