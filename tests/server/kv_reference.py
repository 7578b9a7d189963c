"""What a Llama computes where KV comes from elsewhere: the modules of transformers, and attention written out."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoModelForCausalLM
from transformers.models.llama.modeling_llama import rotate_half


@dataclass(frozen=True)
class Kv:
    """Keys, rotated, and values of a run of tokens: float32 [layers, heads, tokens, head size]."""

    keys: torch.Tensor
    values: torch.Tensor

    def __len__(self) -> int:
        return self.keys.shape[2]

    def __getitem__(self, part: slice) -> Kv:
        return Kv(self.keys[:, :, part], self.values[:, :, part])

    def copy(self) -> Kv:
        return Kv(self.keys.clone(), self.values.clone())


def joined(parts: Sequence[Kv]) -> Kv:
    """One behind the other; each keeps the positions that its keys are rotated to."""
    return Kv(torch.cat([kv.keys for kv in parts], 2), torch.cat([kv.values for kv in parts], 2))


class Reference:
    """The first layers of the model of a folder, in float32.

    A token has an *index*, and sees what has a lower one, and a *position*, by which its key is rotated.
    """

    def __init__(self, folder: Path, layers: int) -> None:
        self._whole = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, num_hidden_layers=layers
        ).eval()
        self._model = self._whole.model

    def compute(
        self, kv: Kv, tokens: Sequence[int], positions: Sequence[int], rows: Sequence[int]
    ) -> torch.Tensor:
        """Compute some tokens of a context, in all layers, and put their KV in its place.

        Args:
            kv: of all tokens; changed where it is computed.
            tokens: all of them.
            positions: of each.
            rows: indices to compute, ascending.

        Returns:
            Log-probabilities of what follows each row, float32 [rows, vocabulary].
        """
        with torch.no_grad(), _one_thread():
            return self._compute(kv, tokens, positions, torch.tensor(rows))

    def _compute(
        self, kv: Kv, tokens: Sequence[int], positions: Sequence[int], at: torch.Tensor
    ) -> torch.Tensor:
        hidden = self._model.embed_tokens(torch.tensor(tokens)[at])
        turn = self._turn(torch.tensor(positions)[at])
        seen = torch.arange(len(kv))[None] <= at[:, None]
        for number, layer in enumerate(self._model.layers):
            inner, attention = layer.input_layernorm(hidden), layer.self_attn
            query, key, value = (
                weights(inner).view(len(at), -1, attention.head_dim).transpose(0, 1)
                for weights in (attention.q_proj, attention.k_proj, attention.v_proj)
            )
            kv.keys[number][:, at], kv.values[number][:, at] = _turned(key, turn), value
            found = scaled_dot_product_attention(
                _turned(query, turn)[None],
                kv.keys[number][None],
                kv.values[number][None],
                attn_mask=seen,
                enable_gqa=True,
            )
            hidden = hidden + attention.o_proj(found[0].transpose(0, 1).reshape(len(at), -1))
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        logprobs: torch.Tensor = self._whole.lm_head(self._model.norm(hidden)).log_softmax(-1)
        return logprobs

    def encode(self, tokens: Sequence[int], position: int = 0, before: Kv | None = None) -> Kv:
        """KV of tokens at successive positions, behind those of ``before``."""
        context = 0 if before is None else len(before)
        kv = self.nothing(len(tokens)) if before is None else joined([before, self.nothing(len(tokens))])
        total = context + len(tokens)
        positions = [0] * context + list(range(position, position + len(tokens)))
        self.compute(kv, [0] * context + list(tokens), positions, range(context, total))
        return kv[context:]

    def moved(self, kv: Kv, delta: int) -> Kv:
        """The same, at other positions."""
        return Kv(_turned(kv.keys, self._turn(torch.tensor([delta]))), kv.values)

    def nothing(self, tokens: int) -> Kv:
        """A place for KV that is to be computed; whoever reads it before that reads NaN."""
        config = self._whole.config
        shape = (config.num_hidden_layers, config.num_key_value_heads, tokens, config.head_dim)
        return Kv(torch.full(shape, math.nan), torch.full(shape, math.nan))

    def _turn(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        cos, sin = self._model.rotary_emb(torch.zeros(1), positions[None])
        return cos[0], sin[0]


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Threads that wait for each other while a server wants the cores take ten times as long as one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _turned(vectors: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    cos, sin = turn
    return vectors * cos + rotate_half(vectors) * sin
