"""The page of ``GET /hive/ui``, and the content security policy that it is served with."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from importlib.resources import files

PATH = "/hive/ui"


@functools.cache
def content() -> str:
    """Return the page: HTML with an inline style and an inline script."""
    return files("hive.server.ui").joinpath("page.html").read_text(encoding="utf-8")


def _hash_of(tag: str) -> str:
    """Return the policy's source expression for the only inline element ``tag`` of the page."""
    (text,) = re.findall(f"<{tag}>(.*?)</{tag}>", content(), re.DOTALL)
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


HEADERS = {
    "content-security-policy": (
        f"default-src 'none'; script-src {_hash_of('script')}; style-src {_hash_of('style')}; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
"""Headers of the response.  The policy allows only the inline script and style, and requests to the same server."""
