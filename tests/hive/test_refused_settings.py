"""Settings that would serve past the door, and those with which there can be no segment store."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hive.server.flags.refused_settings import SEGMENTS_RELEASE, refusal, segments_refusal
from tests.hive.kv_segments.server_arguments import segments_arguments


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


@pytest.mark.parametrize("changed", [{}, {"page_size": None}, {"kv_cache_dtype": "bfloat16"}], ids=str)
def test_an_ordinary_server_can_have_a_segment_store(changed: dict[str, Any]) -> None:
    assert segments_refusal(segments_arguments(**changed), SEGMENTS_RELEASE) is None


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"speculative_algorithm": "EAGLE"}, "--speculative-algorithm EAGLE"),
        ({"tp_size": 2}, "--tp-size"),
        ({"dp_size": 2}, "--dp-size"),
        ({"pp_size": 2}, "--pp-size"),
        ({"disaggregation_mode": "prefill"}, "--disaggregation-mode"),
        ({"enable_hierarchical_cache": True}, "--enable-hierarchical-cache"),
        ({"radix_cache_backend": "mine"}, "--radix-cache-backend mine"),
        ({"enable_streaming_session": True}, "--enable-streaming-session"),
    ],
    ids=str,
)
def test_what_does_not_go_with_a_segment_store_is_refused_by_name(
    changed: dict[str, Any], named: str
) -> None:
    for given in ({named.split()[0]}, set()):
        reason = segments_refusal(segments_arguments(**changed), SEGMENTS_RELEASE, given)
        assert reason is not None
        assert reason.startswith(named)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"kv_cache_dtype": "fp8_e4m3"}, "--kv-cache-dtype fp8_e4m3 quantises"),
        ({"page_size": 16}, "--page-size 16"),
        ({"disable_radix_cache": True}, "--disable-radix-cache"),
    ],
    ids=str,
)
def test_what_sglang_may_have_set_itself_is_told_once_the_model_is_known(
    changed: dict[str, Any], named: str
) -> None:
    args = segments_arguments(**changed)
    assert segments_refusal(args, SEGMENTS_RELEASE, {"--model-path"}) is None
    for reason in (
        segments_refusal(args, SEGMENTS_RELEASE, {named.split()[0]}),
        segments_refusal(args, SEGMENTS_RELEASE),
    ):
        assert reason is not None
        assert reason.startswith(named)


def test_a_release_is_looked_at_before_its_arguments() -> None:
    reason = segments_refusal(SimpleNamespace(), "0.5.23")
    assert reason == f"SGLang 0.5.23 is installed, but segments need {SEGMENTS_RELEASE}"
