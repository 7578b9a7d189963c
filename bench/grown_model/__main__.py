"""``python -m bench.grown_model OUT [--preset llama-8b]``: the embedded model, at the cost of a larger one.

It computes the same function: the same answers, with the same probabilities, but for rounding. Its three adapters are
grown, too, to OUT/roles, where ``--hive-roles`` finds them. A folder that holds the same already is left as it is.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import torch

from bench.grown_model.folder import Plan, grow
from bench.grown_model.geometry import PRESETS, GrowError
from bench.harness.command import Command
from hive.server.embedded_model import EmbeddedModelError, ensure_embedded_model
from hive.server.roles import ROLES, adapter


def _parser() -> Command:
    parser = Command("bench.grown_model", __doc__, json=False)
    add = parser.add_argument
    add("out", type=Path, metavar="OUT", help="folder of the large model")
    add("--preset", choices=list(PRESETS), default="llama-8b", help="(default: llama-8b)")
    about = (
        "what the small model leaves of the weights: copies of it and noise that nothing reads, or zeros, on which a "
        "GPU spends less power (default: copies)"
    )
    add("--fill", choices=["copies", "zero"], default="copies", help=about)
    about = "a small model of the Llama family (default: the embedded one)"
    add("--source", type=Path, metavar="DIR", help=about)
    about = "its LoRA adapters in PEFT's format (default: the embedded model's roles; none of another model)"
    add("--adapters", type=Path, nargs="+", metavar="DIR", help=about)
    add("--dtype", choices=["bfloat16", "float32"], default="bfloat16", help="(default: bfloat16)")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    add("--device", default=device, help="what makes the weights (default: %(default)s)")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    began = time.monotonic()
    options = _parser().parse_args(argv)
    try:
        if options.adapters is not None:
            adapters = {folder.name: folder for folder in options.adapters}
        else:
            adapters = {} if options.source else {role: adapter(role) for role in ROLES}
        plan = Plan(
            source=options.source or ensure_embedded_model(),
            adapters=adapters,
            preset=options.preset,
            big=PRESETS[options.preset],
            fill=options.fill,
            dtype=getattr(torch, options.dtype),
            device=options.device,
        )
        new = grow(plan, options.out)
    except (EmbeddedModelError, FileNotFoundError, GrowError) as error:
        raise SystemExit(f"grown_model: {error}") from None
    except OSError as error:
        raise SystemExit(f"grown_model: {options.out} cannot be written: {error.strerror or error}") from None
    if new:
        print(f"{options.out}: done in {time.monotonic() - began:.0f} s")
    else:
        print(f"{options.out} holds it already: nothing to do")


if __name__ == "__main__":
    main()
