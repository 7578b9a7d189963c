"""``python -m bench.training.merge --role ROLE --out DIR``: the embedded model with a role's adapter merged into it.

A model folder for any engine, with or without LoRA: it plays one role, at no cost beside the model itself. Needs
``hive[demo,train]``.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import torch

from bench.harness.command import Command
from hive.server.embedded_model import EmbeddedModelError, ensure_embedded_model
from hive.server.roles import ROLES, adapter

_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")


def merge(base: Path, adapter: Path, out: Path) -> None:
    """Write the model folder ``base`` with the adapter in it to ``out``, in bfloat16; products are in float32."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    merged = PeftModel.from_pretrained(model, adapter).merge_and_unload()
    merged.to(torch.bfloat16).save_pretrained(out)
    # As they are: transformers would write the tokenizer in another form.
    for name in _TOKENIZER:
        shutil.copy(base / name, out / name)


def main(argv: Sequence[str] | None = None) -> None:
    parser = Command("bench.training.merge", __doc__, json=False)
    parser.add_argument("--role", choices=ROLES, required=True)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    options = parser.parse_args(argv)
    try:
        merge(ensure_embedded_model(), adapter(options.role), options.out)
    except ModuleNotFoundError as error:
        raise SystemExit(f"merge: {error.name} is not installed. Run: uv pip install 'hive[train]'") from None
    except (EmbeddedModelError, FileNotFoundError) as error:
        raise SystemExit(f"merge: {error}") from None


if __name__ == "__main__":
    main()
