"""Flags of the server: what is accepted, what is refused, and how."""

from __future__ import annotations

import argparse
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from hive.launch_server import cpu_defaults, model_path, split_args
from hive.server.agents.window import WindowSettings
from hive.server.flags.server_args import ENVIRONMENT_VARIABLE, HiveServerArgs, parse_bytes


def test_hive_flags_are_split_from_sglangs() -> None:
    args, rest = split_args(["--port", "1", "--hive-logits-cache-bytes", "2M", "--model-path", "m"])
    assert args.logits_cache_bytes == 2 * 2**20
    assert rest == ["--port", "1", "--model-path", "m"]


def test_the_logits_cache_can_be_switched_off() -> None:
    assert not split_args(["--no-hive-logits-cache"])[0].logits_cache
    assert split_args([])[0].logits_cache


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--hive-logits-cache-bytes", "-5"], "logits-cache-bytes"),
        (["--hive-logits-cache-bytes", "many"], "logits-cache-bytes"),
        (["--hive-logits-cache-head", "0"], "--hive-logits-cache-head must be at least 1"),
        (["--hive-max-agents", "x"], "--hive-max-agents"),
        (["--hive-nonsense"], "unknown flag --hive-nonsense"),
        (["--hive-eviction", "fifo"], "--hive-eviction"),
        (["--hive-schedule", "lottery"], "--hive-schedule"),
        (["--hive-schedule-max-passes", "0"], "--hive-schedule-max-passes must be at least 1, got 0"),
        (["--hive-round-requests", "0"], "--hive-round-requests must be at least 1, got 0"),
        (["--hive-round-requests", "1.5"], "--hive-round-requests"),
        (["--hive-window-rounds", "-1"], "--hive-window-rounds must be at least 1, got -1"),
        (
            ["--hive-collaborative-weight", "-0.1"],
            "--hive-collaborative-weight must be from 0 to 1, got -0.1",
        ),
        (["--hive-share-tenants", "some"], "--hive-share-tenants"),
        (["--hive-max-tenant-agents", "0"], "--hive-max-tenant-agents must be at least 1, got 0"),
        (["--hive-max-body-bytes", "1"], "--hive-max-body-bytes must be at least 1024, got 1"),
        (["--hive-allow-origins", "example.org"], "--hive-allow-origins must list origins such as https://"),
        (["--hive-allow-origins", "https://a.org,https://b.org/"], "got 'https://b.org/'"),
        (["--hive-eviction", "density", "--radix-eviction-policy", "lfu"], "give only one of them"),
        (["--radix-eviction-policy=lfu", "--hive-eviction=lru"], "give only one of them"),
        (["--hive-roles", "--config", "c.yaml"], "leave out --config"),
        (["--hive-roles", "--lora-paths=a=b", "--model=m"], "leave out --lora-paths"),
    ],
)
def test_a_bad_flag_is_named_and_ends_the_start(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        split_args(argv)
    assert stopped.value.code == 2
    assert words in capsys.readouterr().err


def test_eviction_is_by_density_and_the_queue_the_engines_own() -> None:
    args = HiveServerArgs()
    assert (args.eviction, args.schedule) == ("density", "engine")
    assert args.window == WindowSettings()


def test_profiling_and_scheduling_can_be_set() -> None:
    args, rest = split_args(
        [
            *("--hive-eviction", "paper"),
            *("--hive-schedule", "contribution", "--hive-schedule-max-passes", "7"),
            *("--hive-round-requests", "3", "--hive-window-rounds", "5", "--hive-collaborative-weight", "1"),
        ]
    )
    assert rest == []
    assert args.eviction == "paper"
    assert (args.schedule, args.schedule_max_passes) == ("contribution", 7)
    assert args.window == WindowSettings(round_requests=3, rounds=5, collaborative_weight=1.0)


@pytest.mark.parametrize("flag", [["--model-path", "org/name"], ["--model=org/name"]])
def test_roles_may_stand_beside_another_model(flag: list[str]) -> None:
    args, rest = split_args(["--hive-roles", *flag])
    assert args.roles
    assert rest == flag
    assert model_path(rest) == Path("org/name")


@pytest.mark.parametrize("flag", [["--radix-eviction-policy", "lfu"], ["--radix-eviction-policy=lfu"]])
def test_the_engines_flag_alone_leaves_eviction_to_the_engine(flag: list[str]) -> None:
    args, rest = split_args(flag)
    assert args.eviction == "engine"
    assert rest == flag, "SGLang gets its flag"


def test_the_engines_flag_agrees_with_eviction_by_the_engine() -> None:
    args, rest = split_args(["--hive-eviction", "engine", "--radix-eviction-policy", "slru"])
    assert args.eviction == "engine"
    assert rest == ["--radix-eviction-policy", "slru"]


@pytest.mark.parametrize(("text", "size"), [("1024", 1024), ("1K", 1024), ("2g", 2**31), ("0.5M", 2**19)])
def test_sizes_are_read_in_binary_units(text: str, size: int) -> None:
    assert parse_bytes(text) == size


def test_settings_travel_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
    assert not HiveServerArgs.in_environment()
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "")
    args = HiveServerArgs(logits_cache_head=7, eviction="paper", window_rounds=3)
    args.to_environment()
    assert HiveServerArgs.from_environment() == args


def test_help_shows_a_group_for_hive() -> None:
    parser = argparse.ArgumentParser()
    HiveServerArgs.add_cli_args(parser)
    text = parser.format_help()
    assert "Hive:" in text
    assert "--hive-logits-cache-bytes" in text


def test_cpu_defaults_give_way_to_what_was_asked_for() -> None:
    flags = cpu_defaults(["--max-total-tokens=100", "--device", "cpu"])
    assert "--max-total-tokens" not in flags
    assert "--device" not in flags
    assert flags[flags.index("--attention-backend") + 1] == "torch_native"


@pytest.mark.parametrize(
    ("capabilities", "wanted"),
    [
        ({"avx2": True, "avx512_bf16": False, "amx_bf16": False}, ["float32"]),
        ({"avx2": True, "avx512_bf16": True}, []),
        ({"architecture": "aarch64", "bf16": True}, []),
        ({}, ["float32"]),
    ],
)
def test_a_cpu_without_bfloat16_is_not_asked_for_it(
    capabilities: dict[str, Any], wanted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    flags = cpu_defaults([])
    assert [value for flag, value in pairwise(flags) if flag == "--dtype"] == wanted
    assert "--dtype" not in cpu_defaults(["--dtype", "bfloat16"])


def test_origins_are_a_list() -> None:
    assert split_args([])[0].origins == frozenset()
    args = split_args(["--hive-allow-origins", "https://a.org, http://10.0.0.5:8080,null"])[0]
    assert args.origins == {"https://a.org", "http://10.0.0.5:8080", "null"}
    assert split_args(["--hive-allow-origins", "*"])[0].origins == {"*"}


def test_a_plain_install_says_what_to_install() -> None:
    lacking = ("numpy", "torch", "sglang", "msgspec", "prometheus_client", "platformdirs")
    program = f"import sys; sys.modules.update(dict.fromkeys({lacking})); import hive.launch_server as s; s.main([])"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert ended.stderr == "hive: SGLang is not installed. Run: uv pip install 'hive[server]'\n"
