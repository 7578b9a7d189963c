"""What the adapters do that no other test of the installed release sees."""

from __future__ import annotations

import importlib
import logging
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("sglang", reason="needs the server extra: uv pip install 'hive[server]'")

import torch
from sglang.srt.sampling.sampling_params import SamplingParams

from hive.server.flags.server_args import ENVIRONMENT_VARIABLE, HiveServerArgs
from sglang_patches.cache.radix_cache import HiveRadixCache
from sglang_patches.cache.selection import other_cache
from sglang_patches.contract import releases
from sglang_patches.contract.patches import patches_of
from sglang_patches.contract.releases.base import Release
from sglang_patches.contract.releases.v0_5_23 import _truncated
from sglang_patches.contract.upstream import SEAMS
from sglang_patches.hooks.mem_cache_registry import around_default_radix_cache_factory
from sglang_patches.hooks.tokenizer_manager import before_send_one_request
from tests.sglang_patches.kv_pool import KvPool


@pytest.mark.parametrize("version", releases.SUPPORTED)
def test_every_supported_release_has_a_whole_adapter(version: str) -> None:
    module = importlib.import_module(f"sglang_patches.contract.releases.v{version.replace('.', '_')}")
    assert isinstance(module.RELEASE, Release)


@pytest.mark.parametrize("version", ["0.5.16", "0.5.17.post1", "0.5.24", "0.6.0", ""])
def test_other_versions_are_refused_with_the_list(version: str) -> None:
    with pytest.raises(releases.UnsupportedRelease, match=r"this Hive supports 0\.5\.17 and 0\.5\.23"):
        releases.check(version)


def test_a_newer_release_begins_with_the_hooks_and_symbols_of_the_newest() -> None:
    newest = releases.SUPPORTED[-1]
    assert patches_of("99.0") == patches_of(newest) != patches_of(releases.SUPPORTED[0])
    assert all(seam.symbols_of("99.0") == seam.symbols_of(newest) for seam in SEAMS)


@pytest.mark.parametrize("tag", [{}, {"hive": {"agent": "a"}}, {"hive": {"sample": 5}, "other": 1}])
def test_samples_of_one_request_are_numbered_as_they_are_sent(tag: dict[str, Any]) -> None:
    params = SamplingParams(custom_params=tag or None)
    sent = []
    for _ in range(3):
        message = SimpleNamespace(sampling_params=params)
        before_send_one_request(None, message)
        sent.append(message.sampling_params.custom_params or {})
    assert sent[0] == tag
    first = tag.get("hive", {}).get("sample", 0)
    assert [custom["hive"]["sample"] for custom in sent[1:]] == [first + 1, first + 2]
    assert all(custom.get("other") == tag.get("other") for custom in sent)


def test_truncation_applies_each_rule() -> None:
    rows = torch.tensor([[0.1, 0.4, 0.2, 0.3]] * 4)
    rules = torch.tensor([2, 4, 4, 4]), torch.tensor([1.0, 0.5, 1.0, 1.0]), torch.tensor([0.0, 0.0, 0.6, 0.0])
    weights, ids = _truncated(rows, *rules)
    assert ids.dtype == torch.int32
    kept = [
        {int(token): round(weight, 6) for token, weight in zip(row_ids, row, strict=True) if weight > 0}
        for row_ids, row in zip(ids.tolist(), weights.tolist(), strict=True)
    ]
    assert kept == [{1: 0.4, 3: 0.3}, {1: 0.4, 3: 0.3}, {1: 0.4, 3: 0.3}, {1: 0.4, 3: 0.3, 2: 0.2, 0: 0.1}]


@pytest.mark.skipif(releases.installed() != "0.5.23", reason="of SGLang 0.5.23")
class TestCachesOf0523:
    """Which cache serves, by what the factory is given."""

    @pytest.fixture
    def context(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        from sglang.srt import runtime_context
        from sglang.srt.mem_cache.registry import TreeCacheBuildContext

        memory = dict.fromkeys(
            ("enable_unified_cache_external_linker", "enable_lmcache", "enable_flexkv"), False
        )
        for name, values in (
            ("get_disagg", {"disaggregation_decode_retraction_backup": None}),
            ("get_memory", {**memory, "enable_session_radix_cache": False}),
            ("get_serving", {"enable_streaming_session": False}),
        ):
            found = SimpleNamespace(**values)
            monkeypatch.setattr(runtime_context, name, lambda found=found: found)
        monkeypatch.setenv(ENVIRONMENT_VARIABLE, "")
        HiveServerArgs().to_environment()
        switches = dict.fromkeys(
            ("is_hybrid_swa", "is_hybrid_ssm", "enable_hierarchical_cache", "disable_radix_cache"), False
        )
        return TreeCacheBuildContext(
            server_args=None,
            params=KvPool(64).params,
            tp_worker=None,
            model_config=None,
            tp_size=1,
            tp_rank=0,
            tp_group=None,
            **switches,
        )

    def test_the_plain_tree_is_extended(self, context: Any) -> None:
        assert other_cache(context) is None
        assert type(around_default_radix_cache_factory(lambda _ctx: "SGLang's", context)) is HiveRadixCache

    @pytest.mark.parametrize(
        ("switch", "reason"),
        [("enable_hierarchical_cache", "host tier"), ("is_hybrid_swa", "sliding windows")],
    )
    def test_where_sglangs_tree_serves_a_warning_says_so(
        self, context: Any, switch: str, reason: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        setattr(context, switch, True)
        with caplog.at_level(logging.WARNING):
            assert around_default_radix_cache_factory(lambda _ctx: "SGLang's", context) == "SGLang's"
        (warning,) = caplog.messages
        assert reason in warning
        assert "SGLang's own policy lru evicts KV" in warning
