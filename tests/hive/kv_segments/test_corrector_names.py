"""Every way to name a corrector wrongly is refused, and the field at fault is named."""

from __future__ import annotations

from typing import Any

import pytest

from hive.server.kv_segments.correctors import DEFAULT, corrector_of, correctors
from hive.server.request_tag import RequestError


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (None, "c"),
        (True, "c"),
        (1, "c"),
        (["none"], "c"),
        ("", "c"),
        ("None", "c"),
        ("first_k", "c"),
        ({}, "c.kind"),
        ({"share": 0.5}, "c.kind"),
        ({"kind": None}, "c.kind"),
        ({"kind": "other"}, "c.kind"),
        ({"kind": ["blend"]}, "c.kind"),
        ({"kind": {"kind": "blend"}}, "c.kind"),
        ({"kind": "none", "share": 0.5}, "c.share"),
        ({"kind": "recompute-all", "tokens": 4}, "c.tokens"),
        ({"kind": "first-k", "block": 4}, "c.block"),
        ({"kind": "blend", "tokens": 4}, "c.tokens"),
        ({"kind": "blend", "a b": 4}, "c.'a b'"),
        ({"kind": "blend", "x" * 1000: 4}, f"c.'{'x' * 78}…"),
        ({"kind": "first-k", "share": 0.5, "tokens": 4}, "c.tokens"),
        *(
            ({"kind": kind, "share": share}, "c.share")
            for kind in ("first-k", "blend")
            for share in (None, True, "0.5", -0.01, 1.01, float("nan"), float("inf"), [0.5], 10**400)
        ),
        *(
            ({"kind": kind, name: number}, f"c.{name}")
            for kind, name in (("first-k", "tokens"), ("blend", "block"))
            for number in (None, False, True, 0, -1, 1.0, "4", 2**31, 10**5000)
        ),
    ],
    ids=lambda value: str(value)[:60] if not isinstance(value, dict) else None,
)
def test_a_bad_spec_is_refused_by_field(spec: Any, field: str) -> None:
    with pytest.raises(RequestError) as caught:
        corrector_of(spec, "c")
    assert caught.value.field == field
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("kind", correctors())
def test_a_name_alone_is_fine(kind: str) -> None:
    assert type(corrector_of(kind, "c")) is correctors()[kind]
    assert type(corrector_of({"kind": kind}, "c")) is correctors()[kind]


@pytest.mark.parametrize(
    "spec",
    [
        {"kind": "first-k", "share": 0},
        {"kind": "first-k", "share": 1},
        {"kind": "first-k", "tokens": 2**31 - 1},
        {"kind": "blend", "share": 0.15, "block": 1},
    ],
)
def test_settings_are_the_correctors_own(spec: dict[str, Any]) -> None:
    corrector = corrector_of(spec, "c")
    assert {name: getattr(corrector, name) for name in spec} == spec


def test_the_default_is_one_of_them() -> None:
    assert DEFAULT in correctors()
