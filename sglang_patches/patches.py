"""The one table of hooks: what Hive changes in SGLang, where, why, and what breaks if it moves.

SGLang is extended through its plugin API alone.  A hook names its upstream symbol and the leading parameters
it relies on; ``tests/sglang_patches/test_contract.py`` checks both against the installed SGLang, and
:func:`sglang_patches.plugin.verify` refuses to serve when one of them did not apply.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SUPPORTED_SGLANG = "0.5.17"
"""The exact version that the table below was written against."""

Group = Literal["cpu", "hive"]


@dataclass(frozen=True)
class Patch:
    """One hook on one upstream symbol."""

    target: str
    """Dotted path of the upstream function or method."""
    kind: Literal["before", "after", "around", "replace"]
    hook: str
    """``module:function`` inside :mod:`sglang_patches`."""
    parameters: tuple[str, ...]
    """Names of the upstream parameters the hook relies on, in order."""
    why: str
    breaks: str
    """What a user would see if the symbol moved and the hook were lost."""
    group: Group = "hive"
    """``cpu``: applied wherever the CPU platform is active; ``hive``: only under ``hive.launch_server``."""


_XGRAMMAR = "sglang.srt.constrained.xgrammar_backend."

PATCHES: tuple[Patch, ...] = (
    Patch(
        _XGRAMMAR + "_allocate_token_bitmask",
        "replace",
        "xgrammar_backend:allocate_token_bitmask",
        ("vocab_size", "batch_size"),
        "Pinned memory needs an NVIDIA driver.",
        "Grammar-constrained requests crash the scheduler on a CPU.",
        "cpu",
    ),
    Patch(
        _XGRAMMAR + "XGrammarGrammarBackend.apply_vocab_mask",
        "replace",
        "xgrammar_backend:apply_vocab_mask",
        ("logits", "vocab_mask"),
        "Upstream raises for devices that are not CUDA-like.",
        "Grammar-constrained requests crash the scheduler on a CPU.",
        "cpu",
    ),
    Patch(
        _XGRAMMAR + "XGrammarGrammar.apply_vocab_mask",
        "replace",
        "xgrammar_backend:apply_vocab_mask_of_grammar",
        ("self", "logits", "vocab_mask"),
        "Upstream raises for devices that are not CUDA-like.",
        "Grammar-constrained requests crash the scheduler on a CPU.",
        "cpu",
    ),
)
