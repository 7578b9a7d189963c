"""Keys and passwords among a server's arguments, which nobody is shown."""

from __future__ import annotations

import re
from typing import Any

SECRETS = ("api_key", "admin_api_key", "ssl_keyfile_password")
"""Names of SGLang's arguments."""

HIDDEN = "***"

_FLAG = re.compile(
    r"(--(?:" + "|".join(name.replace("_", "-") for name in SECRETS) + r"))"
    # A word as shells write it, with quotes in it or around it.
    r"""(=|\s+)(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^\s'"\\])+"""
)
"""A secret in a command line; later releases of SGLang show theirs."""


def without_secrets(value: Any) -> Any:
    """The same JSON with secrets hidden, however deep they are; whether one is set can still be told."""
    match value:
        case dict():
            return {
                name: HIDDEN if name in SECRETS and item else without_secrets(item)
                for name, item in value.items()
            }
        case list():
            return [without_secrets(item) for item in value]
        case str():
            return _FLAG.sub(rf"\1\2{HIDDEN}", value)
        case _:
            return value
