"""The table of hooks against the installed SGLang: every symbol exists and takes the parameters we rely on."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest

sglang = pytest.importorskip("sglang", reason="needs the server extra: uv pip install 'hive[server]'")

from sglang_patches.contract.patches import PATCHES, Patch, patches_of  # noqa: E402
from sglang_patches.contract.releases import SUPPORTED, current  # noqa: E402
from sglang_patches.contract.releases.base import Release  # noqa: E402
from sglang_patches.contract.upstream import SEAMS, Seam  # noqa: E402


def ids(patch: Patch) -> str:
    return patch.target.removeprefix("sglang.srt.")


def test_the_installed_sglang_is_a_supported_one_and_has_an_adapter() -> None:
    assert sglang.__version__ in SUPPORTED
    assert isinstance(current(), Release)


@pytest.mark.parametrize("patch", patches_of(sglang.__version__), ids=ids)
def test_the_upstream_symbol_takes_the_parameters(patch: Patch) -> None:
    owner_path, _, name = patch.target.rpartition(".")
    owner = pkgutil.resolve_name(owner_path)
    symbol = inspect.getattr_static(owner, name)
    function = symbol.__func__ if isinstance(symbol, classmethod | staticmethod) else symbol
    parameters = tuple(inspect.signature(function).parameters)
    assert parameters[: len(patch.parameters)] == patch.parameters


@pytest.mark.parametrize("patch", PATCHES, ids=ids)
def test_the_hook_exists_and_has_a_docstring(patch: Patch) -> None:
    module, _, name = patch.hook.partition(":")
    hook = getattr(importlib.import_module(f"sglang_patches.hooks.{module}"), name)
    assert inspect.getdoc(hook)
    assert patch.why.endswith(".")
    assert patch.breaks.endswith(".")


@pytest.mark.parametrize("seam", SEAMS, ids=lambda seam: seam.name)
def test_the_symbols_of_a_seam_exist(seam: Seam) -> None:
    importlib.import_module(seam.where)
    for symbol in seam.symbols_of(sglang.__version__):
        pkgutil.resolve_name(f"sglang.{symbol}")


def test_no_symbol_is_hooked_twice() -> None:
    targets = [patch.target for patch in PATCHES]
    assert len(targets) == len(set(targets))


def test_the_chat_endpoint_renders_as_render_relies_on() -> None:
    from sglang.srt.entrypoints.openai.serving_chat import OpenAIServingChat

    parameters = tuple(inspect.signature(OpenAIServingChat._convert_to_internal_request).parameters)
    assert parameters[:3] == ("self", "request", "raw_request")
    source = inspect.getsource(OpenAIServingChat)
    for name in ("reasoning_parser", "is_gpt_oss", "is_gemma4", "chat_encoding_spec", "tokenizer_manager"):
        assert f"self.{name}" in source
    # The prompt's text is what the endpoint gives to its tokenizer.
    assert "self.tokenizer_manager.tokenizer.encode(" in source
