"""Turns of keys: their algebra, and the frequencies and rotations of transformers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hive.server.kv_segments.rotation import Rope, UnsupportedRope

HEADS, HEAD_DIM, LONGEST = 2, 32, 131_072
SIZES = {"num_attention_heads": HEADS, "head_dim": HEAD_DIM, "max_position_embeddings": LONGEST}
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 10_000.0},
    "default, large theta": {"rope_type": "default", "rope_theta": 1_000_000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500_000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 1_000_000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 32_768,
    },
    "yarn, all said": {
        "rope_type": "yarn",
        "rope_theta": 150_000.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "truncate": False,
        "mscale": 1.0,
        "mscale_all_dim": 0.7,
    },
}


def config_of(variant: str, partial: float = 1.0) -> dict[str, Any]:
    return {**SIZES, "rope_parameters": {**VARIANTS[variant], "partial_rotary_factor": partial}}


def ropes() -> st.SearchStrategy[Rope]:
    return st.builds(
        lambda variant, partial, interleaved: Rope.from_config(
            config_of(variant, partial), interleaved=interleaved
        ),
        st.sampled_from(sorted(VARIANTS)),
        st.sampled_from([0.25, 0.5, 1.0]),
        st.booleans(),
    )


def keys_of(seed: int, tokens: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((tokens, HEADS, HEAD_DIM), generator=generator).to(dtype)


def directly(rope: Rope, keys: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """RoPE by its definition, in float64: a pair is a complex number, times exp(i * position * frequency)."""
    out = keys.double()
    half = rope.rotary_dim // 2
    firsts = torch.arange(half) * (2 if rope.interleaved else 1)
    seconds = firsts + (1 if rope.interleaved else half)
    angles = positions[:, None, None] * rope.inverse_frequencies
    turned = torch.complex(out[..., firsts], out[..., seconds]) * torch.polar(torch.ones_like(angles), angles)
    out[..., firsts], out[..., seconds] = turned.real, turned.imag
    return out


def error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest relative error of one token's key."""
    difference = (actual.double() - expected.double()).flatten(1).norm(dim=1)
    return float((difference / expected.double().flatten(1).norm(dim=1)).max())


seeds = st.integers(0, 2**31)
deltas = st.integers(-100_000, 100_000)


@given(ropes(), seeds, st.lists(st.tuples(deltas, deltas), min_size=1, max_size=6))
def test_turns_add_up(rope: Rope, seed: int, pairs: list[tuple[int, int]]) -> None:
    keys, (first, second) = keys_of(seed, len(pairs)), torch.tensor(pairs).T
    assert error(rope.rotate(rope.rotate(keys, first), second), rope.rotate(keys, first + second)) < 1e-6


@given(ropes(), seeds, deltas)
def test_there_and_back_is_nothing(rope: Rope, seed: int, delta: int) -> None:
    keys = keys_of(seed, 3)
    assert error(rope.rotate(rope.rotate(keys, delta), -delta), keys) < 1e-6


@given(ropes(), seeds, st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
def test_a_turn_by_nothing_keeps_every_bit(rope: Rope, seed: int, dtype: torch.dtype) -> None:
    keys = keys_of(seed, 3, dtype)
    keys[0, 0, 0], keys[0, 0, -1], keys[1, 0, 0] = -0.0, float("inf"), float("nan")
    for nothing in (0, torch.zeros(3, dtype=torch.int32)):
        assert torch.equal(rope.rotate(keys, nothing).view(torch.uint8), keys.view(torch.uint8))


@given(
    ropes(),
    seeds,
    st.lists(st.tuples(st.integers(0, LONGEST), st.integers(0, LONGEST)), min_size=1, max_size=3),
)
def test_a_moved_key_is_the_key_of_its_new_position(
    rope: Rope, seed: int, pairs: list[tuple[int, int]]
) -> None:
    keys, (old, new) = keys_of(seed, len(pairs)), torch.tensor(pairs).T
    computed_there = directly(rope, keys, old)
    assert error(rope.rotate(computed_there.float(), new - old), directly(rope, keys, new)) < 1e-6


@given(ropes(), seeds, deltas)
def test_dimensions_behind_the_rotary_ones_stay(rope: Rope, seed: int, delta: int) -> None:
    keys = keys_of(seed, 2)
    moved = rope.rotate(keys, delta)
    assert torch.equal(moved[..., rope.rotary_dim :], keys[..., rope.rotary_dim :])
    assert rope.rotary_dim <= rope.head_dim == HEAD_DIM


@given(ropes(), seeds, st.lists(deltas, min_size=4, max_size=4))
def test_layers_are_turned_together_and_one_delta_is_that_delta_for_all(
    rope: Rope, seed: int, numbers: list[int]
) -> None:
    keys, delta = keys_of(seed, 8).view(2, 4, HEADS, HEAD_DIM), torch.tensor(numbers)
    both = rope.rotate(keys, delta)
    assert torch.equal(both[0], rope.rotate(keys[0], delta))
    assert torch.equal(both[1], rope.rotate(keys[1], delta.int()))
    assert torch.equal(rope.rotate(keys, numbers[0]), rope.rotate(keys, torch.full((4,), numbers[0])))


@given(ropes(), seeds, deltas.filter(bool))
def test_one_turn_of_bfloat16_costs_less_than_half_a_percent(rope: Rope, seed: int, delta: int) -> None:
    keys = keys_of(seed, 8, torch.bfloat16)
    moved = rope.rotate(keys, delta)
    assert moved.dtype == torch.bfloat16
    assert error(moved, rope.rotate(keys.float(), delta)) < 0.005


@pytest.mark.parametrize("partial", [1.0, 0.5])
@pytest.mark.parametrize("variant", VARIANTS)
def test_frequencies_and_keys_are_those_of_transformers(variant: str, partial: float) -> None:
    pytest.importorskip("transformers")
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXRotaryEmbedding
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, rotate_half

    written = {**VARIANTS[variant], "partial_rotary_factor": partial}
    config = LlamaConfig(**SIZES, hidden_size=HEADS * HEAD_DIM, rope_parameters=written)
    rope = Rope.from_config(config)
    # Llama's own function for the default knows no partial rotation.
    theirs = (LlamaRotaryEmbedding if partial == 1.0 else GPTNeoXRotaryEmbedding)(config)
    if (function := ROPE_INIT_FUNCTIONS.get(written["rope_type"])) is not None:
        assert torch.equal(function(config)[0], theirs.inv_freq)
    torch.testing.assert_close(rope.inverse_frequencies.float(), theirs.inv_freq, rtol=1e-6, atol=0)

    # Keys as the model computes them, scaled where it scales them. Its angles are of float32, so near positions.
    keys, old, new = keys_of(1, 3), torch.tensor([0, 5, 90]), torch.tensor([40, 1, 0])

    def of_model(positions: torch.Tensor) -> torch.Tensor:
        cos, sin = (table[0][:, None] for table in theirs(keys, positions[None]))
        rotary = keys[..., : rope.rotary_dim]
        return torch.cat((rotary * cos + rotate_half(rotary) * sin, keys[..., rope.rotary_dim :]), dim=-1)

    assert (theirs.attention_scaling != 1.0) == ("yarn" in variant)
    assert error(rope.rotate(of_model(old), new - old), of_model(new)) < 2e-5


@pytest.mark.parametrize("kind", ["rope_type", "type"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_older_way_to_write_it_says_the_same(variant: str, kind: str) -> None:
    written = dict(VARIANTS[variant])
    theta, written[kind] = written.pop("rope_theta"), written.pop("rope_type")
    older = {**SIZES, "rope_theta": theta, "rope_scaling": written, "partial_rotary_factor": 0.5}
    expected = Rope.from_config(config_of(variant, 0.5))
    for config in (older, SimpleNamespace(**older)):
        assert torch.equal(Rope.from_config(config).inverse_frequencies, expected.inverse_frequencies)


def test_what_a_config_does_not_say_is_as_transformers_has_it() -> None:
    short = Rope.from_config(
        {"hidden_size": 64, "num_attention_heads": 2, "rope_scaling": None, "head_dim": None}
    )
    assert (short.head_dim, short.rotary_dim, short.interleaved) == (32, 32, False)
    assert torch.equal(short.inverse_frequencies, Rope.from_config(config_of("default")).inverse_frequencies)
    # The length of training is all of it, or where it is written outside, that.
    yarn = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 2.0}
    trained_long = {**yarn, "original_max_position_embeddings": LONGEST}
    trained_short = {**yarn, "original_max_position_embeddings": 4096}

    def frequencies(parameters: dict[str, Any], **others: Any) -> torch.Tensor:
        return Rope.from_config({**SIZES, "rope_parameters": parameters, **others}).inverse_frequencies

    assert torch.equal(frequencies(yarn), frequencies(trained_long))
    outside = frequencies(trained_long, original_max_position_embeddings=4096)
    assert torch.equal(outside, frequencies(trained_short))
    assert not torch.equal(outside, frequencies(yarn))


def test_layers_of_one_rope_may_be_written_one_by_one() -> None:
    nested = dict.fromkeys(("full_attention", "sliding_attention"), VARIANTS["llama3"])
    rope = Rope.from_config({**SIZES, "rope_parameters": nested})
    assert torch.equal(rope.inverse_frequencies, Rope.from_config(config_of("llama3")).inverse_frequencies)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"rope_type": "dynamic", "factor": 2.0}, "'dynamic' .* default, linear, llama3, yarn"),
        ({"rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.0]}, "'longrope'"),
        ({"type": "su"}, "'su'"),
        ({"rope_type": "proportional"}, "'proportional'"),
        ({"rope_type": "default", "mrope_section": [4, 6, 6]}, "'mrope'"),
        ({"rope_type": "default", "use_fope": True}, "'fope'"),
        ({"rope_type": "linear"}, "'linear' are incomplete: 'factor'"),
        ({"rope_type": "llama3", "factor": 8.0}, "'llama3' are incomplete: 'low_freq_factor'"),
        ({"rope_type": "default", "partial_rotary_factor": 0.1}, "has 3 rotary ones"),
        ({"rope_type": "default", "partial_rotary_factor": 0.0}, "has 0 rotary ones"),
        (
            {"full_attention": VARIANTS["default"], "sliding_attention": VARIANTS["linear"]},
            "different RoPE parameters .full_attention, sliding_attention.",
        ),
    ],
)
def test_what_cannot_be_moved_is_refused_by_name(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedRope, match=message):
        Rope.from_config({**SIZES, "rope_parameters": parameters})
