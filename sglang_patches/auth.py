"""Hook on ``decide_request_auth``: the page of ``GET /hive/ui`` needs no key, for a browser cannot send one with it.

The page is the same for everybody and holds nothing of the server; what it shows it asks for with the key that its
reader types in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hive.ui.page import PATH


def around_decide_request_auth(original: Callable[..., Any], *, method: str, path: str, **rest: Any) -> Any:
    """Let the page through; all else is SGLang's decision."""
    from sglang.srt.utils.auth import AuthDecision

    if method in ("GET", "HEAD") and path == PATH:
        return AuthDecision(allowed=True)
    return original(method=method, path=path, **rest)
