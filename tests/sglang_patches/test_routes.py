"""The tables of routes against the routes that SGLang has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sglang", reason="needs the server extra: uv pip install 'hive[server]'")

from sglang_patches.http import routes


def paths(tree: Iterable[Any], prefix: str = "") -> Iterator[str]:
    """Of all routes, those of included routers as well."""
    for route in tree:
        inner = getattr(getattr(route, "original_router", None), "routes", None)
        if inner is not None:
            yield from paths(inner, prefix)
        else:
            yield prefix + route.path


@pytest.fixture(scope="module")
def served() -> set[str]:
    from sglang.srt.entrypoints.http_server import app

    return set(paths(app.routes))


def test_every_route_of_sglang_is_in_a_table(served: set[str]) -> None:
    unknown = {path for path in served if routes.route_of(path.replace("{", "").replace("}", "")) is None}
    assert not unknown, (
        f"SGLang has new routes; say in sglang_patches/http/routes.py how the request middleware treats {unknown}"
    )
    assert len(served) > 80


def test_no_route_is_in_two_tables() -> None:
    tables = [routes.CHECKED.keys(), routes.GENERATING, routes.PICKLED, routes.OTHERS]
    assert sum(map(len, tables)) == len({path for table in tables for path in table})


def test_every_generating_route_is_checked() -> None:
    """Each endpoint that builds a request for the engine is in a table of those that generate."""
    from sglang.srt.entrypoints import http_server

    source = Path(http_server.__file__).read_text()
    asking = {
        block.split('"', 2)[1]
        for block in source.split("@app.")
        if "generate_request(" in block and block.startswith(("api_route", "post"))
    }
    assert {"/generate", "/encode", "/classify"} <= asking
    assert asking <= {*routes.CHECKED, *routes.GENERATING, "AIP_PREDICT_ROUTE"}


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/generate", "/generate"),
        ("/generate/", "/generate"),
        ("/", "/"),
        ("/metrics/", "/metrics"),
        ("/v1/models/a/b", "/v1/models/{model:path}"),
        ("/v1/responses/resp_1", "/v1/responses/{response_id}"),
        ("/v1/responses/resp_1/cancel", "/v1/responses/{response_id}/cancel"),
        ("/hive/sessions/a/b", "/hive/sessions/a/b"),
        ("/metricsx", None),
        ("/dumper/hive:stats", None),
        ("/v1/responses/a/b", None),
        ("//generate", None),
        ("", "/"),
    ],
)
def test_paths_lead_to_routes(path: str, route: str | None) -> None:
    assert routes.route_of(path) == route
