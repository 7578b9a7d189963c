"""Access rules besides SGLang's keys: which web pages may use a server, and who is an operator.

A browser lets any page send requests to any server that it can reach, also to one on the same machine.  If the server
has an API key, such a page does not know it.  If it has none, the headers that browsers add tell where a request comes
from.  Other programs do not send these headers, and are allowed.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from hive.server.request_tag import RequestError, shown

RawHeaders = Sequence[tuple[bytes, bytes]]

_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:(?P<port>[0-9]{1,5}))?", re.ASCII)
_DEFAULT_PORTS = {"http": "80", "https": "443", "ws": "80", "wss": "443"}


@dataclass(frozen=True)
class Access:
    """The access rules of one server."""

    api_key: str | None = None
    admin_api_key: str | None = None
    host: str = "127.0.0.1"
    """The address that the server listens on."""
    origins: frozenset[str] = frozenset()
    """Origins of web pages that may use the server, besides its own and those of this machine; ``*`` for all."""
    pickle_routes: bool = False
    """Whether routes that unpickle their input are served."""

    def check_page(self, raw: RawHeaders, *, navigable: bool = False) -> None:
        """Check that a request does not come from a foreign web page.

        Args:
            raw: headers as in ASGI, names in lower case.
            navigable: whether the response is a page to be viewed, which other pages may link to.

        Raises:
            RequestError: with the header and its rule.
        """
        headers = {name: value.decode("latin-1") for name, value in raw}
        host = headers.get(b"host")
        parsed = _HOST.fullmatch(host) if host else None
        if host and parsed is None:
            raise RequestError(
                "host", f"must be a name or an address, with an optional port, got {shown(host)}"
            )
        if self.api_key is not None or "*" in self.origins:
            return
        origin = headers.get(b"origin")
        if origin is not None:
            if origin in self.origins:
                return
            if not _is_own(origin, parsed):
                raise RequestError(
                    "origin",
                    f"must be the server's own: web pages of {shown(origin)} may not use it; start it with --api-key, "
                    "or with that origin in --hive-allow-origins",
                )
        elif headers.get(b"sec-fetch-site") in ("cross-site", "same-site") and not (
            navigable and headers.get(b"sec-fetch-mode") == "navigate"
        ):
            raise RequestError(
                "sec-fetch-site", "must not be cross-site or same-site: the page is of another site"
            )
        # DNS rebinding: a page whose name resolves to this machine has the server's own origin, so check the name.
        if parsed is not None and _is_loopback(self.host) and not self._may_be_called(parsed["name"]):
            raise RequestError(
                "host",
                f"must be an address or localhost, got {shown(host)}: the server listens only on {self.host}, and has "
                "no key; add the origin of a proxy to --hive-allow-origins",
            )

    def _may_be_called(self, name: str) -> bool:
        listed = {urlsplit(origin).hostname for origin in self.origins}
        return _is_loopback(name) or _address(name) is not None or name.lower() in listed

    def is_user(self, raw: RawHeaders) -> bool:
        """Whether a request has the API key or the operator's, for routes that SGLang's own check skips."""
        return self.api_key is None or _bears(raw, self.api_key) or self._has_admin_key(raw)

    def is_operator(self, raw: RawHeaders) -> bool:
        """Whether a request may see all tenants: it has the admin key, or the server has none."""
        return self.admin_api_key is None or self._has_admin_key(raw)

    def _has_admin_key(self, raw: RawHeaders) -> bool:
        return self.admin_api_key is not None and _bears(raw, self.admin_api_key)


def _bears(raw: RawHeaders, key: str) -> bool:
    value = next((value for name, value in raw if name == b"authorization"), b"")
    scheme, _, token = value.partition(b" ")
    return scheme.lower() == b"bearer" and hmac.compare_digest(token, key.encode())


def _is_own(origin: str, host: re.Match[str] | None) -> bool:
    """Whether an origin is on this machine, or equals the request's own Host header."""
    try:
        parts = urlsplit(origin)
        name, port = parts.hostname or "", str(parts.port or _DEFAULT_PORTS.get(parts.scheme, ""))
    except ValueError:
        return False
    if _is_loopback(name):
        return True
    if host is None:
        return False
    own_port = host["port"] or _DEFAULT_PORTS.get(parts.scheme, "")
    return (name, port) == ((host["name"] or "").lower().strip("[]"), own_port)


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return None


def _is_loopback(name: str) -> bool:
    address = _address(name)
    return name.lower() == "localhost" if address is None else address.is_loopback
