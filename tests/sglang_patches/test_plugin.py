"""The plugin: when it acts, when it steps aside, and that a lost hook ends the start."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

sglang = pytest.importorskip("sglang", reason="needs the server extra: uv pip install 'hive[server]'")

from hive.server.flags.server_args import ENVIRONMENT_VARIABLE  # noqa: E402
from sglang_patches import cpu_platform, plugin  # noqa: E402
from sglang_patches.contract import activation  # noqa: E402


def test_the_cpu_platform_steps_aside_on_a_cuda_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert cpu_platform.activate() is None
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
    assert activation.active_patches() == ()


def test_the_cpu_platform_steps_aside_for_sglangs_own_cpu_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setenv("SGLANG_USE_CPU_ENGINE", "1")
    assert cpu_platform.activate() is None


def test_an_installed_hive_leaves_stock_sglang_stock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert {patch.group for patch in activation.active_patches()} == {"cpu"}


def test_a_lost_hook_is_named_with_what_it_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry

    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "{}")
    applied = {patch.target for patch in activation.active_patches()}
    lost = next(
        patch for patch in activation.active_patches() if patch.target.endswith("process_batch_result")
    )
    monkeypatch.setattr(HookRegistry, "_patched", applied)
    activation.verify()
    monkeypatch.setattr(HookRegistry, "_patched", applied - {lost.target})
    with pytest.raises(activation.PatchError) as refused:
        activation.verify()
    assert lost.target in str(refused.value)
    assert lost.breaks in str(refused.value)


def test_another_sglang_is_refused_by_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang, "__version__", "0.5.99")
    with pytest.raises(
        activation.PatchError, match=r"0\.5\.99 is installed; this Hive supports 0\.5\.17 and 0\.5\.23"
    ):
        activation.verify()


@pytest.mark.parametrize("hives", [True, False])
def test_nothing_of_another_sglang_is_patched(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, hives: bool
) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry

    monkeypatch.setattr(sglang, "__version__", "0.5.99")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(HookRegistry, "register", lambda *_: pytest.fail("a hook was registered"))
    if hives:
        monkeypatch.setenv(ENVIRONMENT_VARIABLE, "{}")
    else:
        monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
    with caplog.at_level("WARNING"):
        plugin.activate()
    # Hive's launcher says it as it refuses to start.
    assert len(caplog.messages) == (0 if hives else 1)
    assert all("this Hive supports 0.5.17 and 0.5.23" in message for message in caplog.messages)


def launch(*flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hive.launch_server", *flags]
    return subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=300
    )


def test_the_launcher_refuses_to_start_without_its_hooks() -> None:
    # SGLang's own switch keeps it from loading the plugin, as a broken installation would.
    done = launch(SGLANG_PLUGINS="none")
    assert done.returncode == 1
    assert "hooks did not apply" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_bad_flag_ends_the_launcher_with_one_message() -> None:
    done = launch("--hive-logits-cache-head", "0")
    assert done.returncode == 2
    assert done.stderr.strip().endswith("--hive-logits-cache-head must be at least 1, got 0")
