"""Who may use a server: programs, pages of this machine, and whoever has a key."""

from __future__ import annotations

import pytest

from hive.server.access import Access
from hive.server.request_tag import RequestError

LOCAL = "localhost:30000"
EVIL = "https://evil.example"
REBOUND = "evil.example:30000"


def raw(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]


@pytest.mark.parametrize(
    ("access", "headers"),
    [
        # Programs.
        (Access(), {}),
        (Access(), {"host": LOCAL}),
        (Access(), {"host": "127.0.0.1:30000"}),
        (Access(), {"host": "[::1]:30000"}),
        (Access(host="0.0.0.0"), {"host": "hive:30000"}),
        (Access(host="10.0.0.5"), {"host": "inference.internal"}),
        # Pages of this machine, and of the server itself.
        (Access(), {"host": LOCAL, "origin": "http://localhost:30000"}),
        (Access(), {"host": LOCAL, "origin": "http://127.0.0.1:3000"}),
        (Access(), {"host": "[::1]:30000", "origin": "http://[::1]:30000"}),
        (Access(host="0.0.0.0"), {"host": "Hive:30000", "origin": "http://hive:30000"}),
        (Access(host="0.0.0.0"), {"host": "hive.example", "origin": "https://hive.example"}),
        (Access(host="0.0.0.0"), {"host": "hive.example:443", "origin": "https://hive.example"}),
        (Access(), {"host": LOCAL, "sec-fetch-site": "same-origin"}),
        (Access(), {"host": LOCAL, "sec-fetch-site": "none", "sec-fetch-mode": "navigate"}),
        # Pages that are listed, behind a proxy, too.
        (Access(origins=frozenset({EVIL})), {"host": LOCAL, "origin": EVIL}),
        (Access(origins=frozenset({EVIL})), {"host": "evil.example", "sec-fetch-site": "same-origin"}),
        (Access(origins=frozenset({"null"})), {"host": LOCAL, "origin": "null"}),
        (Access(origins=frozenset("*")), {"host": REBOUND, "origin": "https://any.example"}),
        # Where there is a key, pages of others do not have it.
        (Access(api_key="k"), {"host": REBOUND, "origin": EVIL}),
    ],
)
def test_may_use_the_server(access: Access, headers: dict[str, str]) -> None:
    access.check_page(raw(headers))


@pytest.mark.parametrize(
    ("access", "headers", "blamed"),
    [
        (Access(), {"host": LOCAL, "origin": EVIL}, "origin"),
        (Access(), {"host": LOCAL, "origin": "null"}, "origin"),
        (Access(), {"host": LOCAL, "origin": ""}, "origin"),
        (Access(), {"host": LOCAL, "origin": "http://[::1"}, "origin"),
        (Access(), {"host": LOCAL, "origin": "http://localhost.evil.example"}, "origin"),
        (Access(), {"host": LOCAL, "origin": "http://evil.example:99999999"}, "origin"),
        (Access(admin_api_key="a"), {"host": LOCAL, "origin": EVIL}, "origin"),
        (Access(host="0.0.0.0"), {"host": "hive:30000", "origin": "http://hive:3000"}, "origin"),
        (Access(host="0.0.0.0"), {"origin": EVIL}, "origin"),
        # Images, links and frames send no origin.
        (
            Access(),
            {"host": LOCAL, "sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
            "sec-fetch-site",
        ),
        (
            Access(),
            {"host": LOCAL, "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"},
            "sec-fetch-site",
        ),
        (Access(), {"host": LOCAL, "sec-fetch-site": "same-site"}, "sec-fetch-site"),
        # A name that was made to lead here.
        (Access(), {"host": REBOUND}, "host"),
        (Access(), {"host": REBOUND, "origin": f"http://{REBOUND}"}, "host"),
        (Access(host="localhost"), {"host": REBOUND}, "host"),
        # Nonsense, with a key as well.
        (Access(api_key="k"), {"host": "a/health?"}, "host"),
        (Access(), {"host": "user@localhost"}, "host"),
    ],
)
def test_is_refused(access: Access, headers: dict[str, str], blamed: str) -> None:
    with pytest.raises(RequestError) as refused:
        access.check_page(raw(headers))
    assert refused.value.field == blamed


def test_links_of_other_pages_may_lead_to_a_page() -> None:
    link = raw({"host": LOCAL, "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"})
    Access().check_page(link, navigable=True)
    script = raw({"host": LOCAL, "sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"})
    with pytest.raises(RequestError):
        Access().check_page(script, navigable=True)


@pytest.mark.parametrize(
    ("access", "authorization", "user", "operator"),
    [
        (Access(), None, True, True),
        (Access(api_key="k"), None, False, True),
        (Access(api_key="k"), "Bearer k", True, True),
        (Access(api_key="k"), "bearer  k", False, True),
        (Access(api_key="k"), "Basic k", False, True),
        (Access(admin_api_key="a"), None, True, False),
        (Access(admin_api_key="a"), "Bearer a", True, True),
        (Access(api_key="k", admin_api_key="a"), "Bearer k", True, False),
        (Access(api_key="k", admin_api_key="a"), "Bearer a", True, True),
        (Access(api_key="k", admin_api_key="a"), "Bearer \xff", False, False),
        (Access(api_key="k", admin_api_key="a"), "Bearer ", False, False),
    ],
)
def test_keys(access: Access, authorization: str | None, user: bool, operator: bool) -> None:
    headers = raw({} if authorization is None else {"authorization": authorization})
    assert access.is_user(headers) is user
    assert access.is_operator(headers) is operator
