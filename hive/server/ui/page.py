"""The page as it is served, and the policy under which a browser shows it."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from importlib.resources import files

PATH = "/hive/ui"


@functools.cache
def content() -> str:
    """The page: HTML with one style and one script in it."""
    return files("hive.server.ui").joinpath("page.html").read_text(encoding="utf-8")


def _hash_of(tag: str) -> str:
    """What a policy calls the one inline element ``tag`` of the page."""
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
"""Nothing runs or loads but what the page holds, and it talks to its own server only."""
