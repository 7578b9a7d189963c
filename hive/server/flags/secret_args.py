"""Hides keys and passwords in a server's arguments."""

from __future__ import annotations

import re
from typing import Any

SECRETS = ("api_key", "admin_api_key", "ssl_keyfile_password")
"""Names of SGLang's arguments that hold secrets."""

HIDDEN = "***"

_FLAG = re.compile(
    r"(--(?:" + "|".join(name.replace("_", "-") for name in SECRETS) + r"))"
    # A word in shell syntax, with quotes in it or around it.
    r"""(=|\s+)(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^\s'"\\])+"""
)
"""A secret in a command line; later releases of SGLang report theirs."""


def without_secrets(value: Any) -> Any:
    """Return a JSON value with secrets hidden at any depth; it still shows whether a secret is set."""
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
