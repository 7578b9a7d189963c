"""Settings that would serve past the door."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hive.refused_settings import refusal


def arguments(**changed: Any) -> Any:
    stock = {"smg_grpc_mode": False, "grpc_port": None, "encoder_only": False, "tokenizer_worker_num": 1}
    return SimpleNamespace(**{**stock, **changed})


def test_stock_settings_may_start() -> None:
    assert refusal(arguments(), {"DUMPER_SERVER_PORT": "40000", "SGLANG_RUST_SERVER": "0"}) is None


@pytest.mark.parametrize(
    ("changed", "environment", "named"),
    [
        ({"smg_grpc_mode": True, "grpc_port": 40000}, {}, "--smg-grpc-mode"),
        ({"grpc_mode": True}, {}, "--smg-grpc-mode"),
        ({"grpc_port": 40000}, {}, "--grpc-port"),
        ({}, {"SGLANG_GRPC_PORT": "40000"}, "--grpc-port"),
        ({"encoder_only": True}, {}, "--encoder-only"),
        ({"tokenizer_worker_num": 2}, {}, "--tokenizer-worker-num must be 1"),
        ({}, {"DUMPER_SERVER_PORT": "reuse"}, "DUMPER_SERVER_PORT=reuse"),
        ({}, {"SGLANG_RUST_SERVER": "true"}, "SGLANG_RUST_SERVER"),
    ],
)
def test_what_passes_the_door_is_refused_by_name(
    changed: dict[str, Any], environment: dict[str, str], named: str
) -> None:
    sentence = refusal(arguments(**changed), environment)
    assert sentence is not None
    assert sentence.startswith(named)
