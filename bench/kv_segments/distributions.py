"""From final hidden states to distributions over the vocabulary, and how far two of them are apart.

A server started with ``--enable-return-hidden-states`` answers with the hidden states behind the last norm (SGLang
0.5.17, ``LogitsProcessor._get_hidden_states_to_store``): of a prompt, those of all tokens that were computed and not
found in a cache, in their order, as one list; then one row for every further token. What the model would say is
their product with the output weights.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bench.harness.client import BenchError


def head_of(folder: Path) -> torch.Tensor:
    """The output weights of a model, float32[vocabulary, hidden]: those of the embedding where the two are tied.

    Raises `BenchError` when the folder's safetensors do not have them.
    """
    from safetensors import safe_open

    tied = json.loads((folder / "config.json").read_text()).get("tie_word_embeddings", False)
    name = "model.embed_tokens.weight" if tied else "lm_head.weight"
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            if name in file.keys():  # noqa: SIM118  # no mapping, it only has this method
                weights: torch.Tensor = file.get_tensor(name)
                return weights.float()
    raise BenchError(f"{folder.name} has no {name} among its safetensors")


def last_states(meta_info: dict[str, Any], count: int) -> torch.Tensor:
    """The hidden states of the last ``count`` tokens of a prompt, float32[count, hidden].

    Raises `BenchError` when the server gave fewer.
    """
    states: Sequence[Any] = meta_info.get("hidden_states") or []
    rows = states[0] if states else []
    if len(rows) < count:
        raise BenchError(
            f"the server gave {len(rows)} hidden states of a prompt's end, not {count}: it has to be started with "
            "--enable-return-hidden-states, and to compute that end"
        )
    return torch.tensor(rows[-count:])


def generated_states(meta_info: dict[str, Any], count: int) -> torch.Tensor:
    """Hidden states that the ``count`` tokens of an output were drawn from, float32[count, hidden].

    Raises `BenchError` when the server gave another number.
    """
    states: Sequence[Any] = meta_info.get("hidden_states") or []
    if len(states) != count:
        raise BenchError(f"the server gave {len(states)} hidden states of an output, not {count}")
    return torch.tensor([states[0][-1], *states[1:]])


@dataclass(frozen=True)
class Distance:
    """How far some distributions are from those they should be, at each of the positions compared."""

    kl: tuple[float, ...]
    """KL(reference || other), nats, at temperature 1."""
    same_top: tuple[bool, ...]
    """Whether the likeliest token is the same one."""
    logprob_error: float
    """The largest difference of two log-probabilities, of any token anywhere."""
    hidden_error: float
    """Norm of the hidden states' difference over that of the reference."""


def distance(reference: torch.Tensor, other: torch.Tensor, head: torch.Tensor) -> Distance:
    """Compare two rows of final hidden states, float32[positions, hidden] each."""
    # In double: at distances of 1e-12 the rounding of a sum over the vocabulary would be all there is to see.
    exact = torch.log_softmax((reference @ head.T).double(), -1)
    found = torch.log_softmax((other @ head.T).double(), -1)
    return Distance(
        kl=tuple((exact.exp() * (exact - found)).sum(-1).tolist()),
        same_top=tuple((exact.argmax(-1) == found.argmax(-1)).tolist()),
        logprob_error=float((exact - found).abs().max()),
        hidden_error=float((other - reference).norm() / reference.norm()),
    )
