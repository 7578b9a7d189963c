"""Slots against plain torch; the kernel in Triton's interpreter, compiled for a GPU, and on one where there is one."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hive.server.kv_segments.rotation import Rope
from hive.server.kv_segments.slots import KvSlots

SLOTS, HEADS, HEAD_DIM, LAYERS = 40, 3, 16, 3
LIKE = {"num_attention_heads": HEADS, "head_dim": HEAD_DIM}
ROPE = Rope.from_config(LIKE)
ROPES = {
    "halves": ROPE,
    "interleaved": Rope.from_config(LIKE, interleaved=True),
    "partial": Rope.from_config({**LIKE, "partial_rotary_factor": 0.5}),
    "partial, no power of two": Rope.from_config({**LIKE, "partial_rotary_factor": 0.75}, interleaved=True),
}
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def pool(
    rope: Rope = ROPE, dtype: torch.dtype = torch.float32, device: str = "cpu", value_dim: int = HEAD_DIM
) -> KvSlots:
    generator = torch.Generator().manual_seed(7)

    def layers(dim: int) -> list[torch.Tensor]:
        return [
            torch.randn((SLOTS, HEADS, dim), generator=generator).to(dtype).to(device) for _ in range(LAYERS)
        ]

    return KvSlots(layers(HEAD_DIM), layers(value_dim), rope)


def bits(slots: KvSlots) -> list[torch.Tensor]:
    return [layer.clone().view(torch.uint8) for layer in (*slots.keys, *slots.values)]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


moves = st.integers(0, 10).flatmap(
    lambda n: st.tuples(
        st.lists(st.integers(0, 19), min_size=n, max_size=n),
        st.lists(st.integers(20, SLOTS - 1), min_size=n, max_size=n, unique=True),
        st.lists(st.integers(-100_000, 100_000), min_size=n, max_size=n),
    )
)


@given(moves)
def test_a_copy_has_turned_keys_and_the_same_values_and_nothing_else_changes(
    move: tuple[list[int], list[int], list[int]],
) -> None:
    source, target, delta = (torch.tensor(numbers, dtype=torch.int64) for numbers in move)
    before, after = pool(value_dim=8), pool(value_dim=8)
    after.copy(source, target, delta)
    for old, new in zip(before.keys, after.keys, strict=True):
        torch.testing.assert_close(new[target], ROPE.rotate(old[source], delta))
    for old, new in zip(before.values, after.values, strict=True):
        assert torch.equal(new[target], old[source])
    others = torch.ones(SLOTS, dtype=torch.bool)
    others[target] = False
    for old, new in zip((*before.keys, *before.values), (*after.keys, *after.values), strict=True):
        assert torch.equal(new[others], old[others])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("delta", [0, torch.zeros(3, dtype=torch.int32)], ids=["int", "tensor"])
def test_a_copy_to_the_same_position_is_the_same_to_the_bit(
    dtype: torch.dtype, delta: torch.Tensor | int
) -> None:
    slots = pool(dtype=dtype)
    slots.keys[0][1] = -0.0
    slots.keys[0][2, :, ::2] = float("nan")
    slots.keys[0][2, :, 1::2] = float("inf")
    source, target = torch.tensor([1, 2, 2]), torch.tensor([30, 31, 32])
    slots.copy(source, target, delta)
    for layer in (*slots.keys, *slots.values):
        assert torch.equal(layer[target].view(torch.uint8), layer[source].view(torch.uint8))


def test_keys_are_moved_in_place_and_values_stay() -> None:
    before, named_once, named_twice = pool(), pool(), pool()
    at, delta = torch.tensor([3, 9, 4]), torch.tensor([5, 0, -7])
    named_once.copy(at, at, delta)
    named_twice.copy(at, at.clone(), delta)
    assert same(bits(named_once), bits(named_twice))
    for old, new in zip(before.keys, named_once.keys, strict=True):
        torch.testing.assert_close(new[at], ROPE.rotate(old[at], delta))
    assert all(torch.equal(old, new) for old, new in zip(before.values, named_once.values, strict=True))


def test_copying_no_token_changes_nothing() -> None:
    slots, nothing = pool(), torch.tensor([], dtype=torch.int64)
    slots.copy(nothing, nothing, 3)
    assert same(bits(slots), bits(pool()))
    assert slots.read(nothing).keys.shape[1] == 0
    slots.write(slots.read(nothing), nothing, 3)
    assert same(bits(slots), bits(pool()))


@pytest.mark.parametrize("delta", [0, -12, torch.tensor([1, 2, 3])], ids=["still", "all", "each"])
def test_by_way_of_the_host_is_a_copy(delta: torch.Tensor | int) -> None:
    source, target = torch.tensor([4, 0, 11]), torch.tensor([20, 39, 25])
    directly, through_host = pool(value_dim=8), pool(value_dim=8)
    directly.copy(source, target, delta)
    host = through_host.read(source)
    if host.written is not None:
        host.written.synchronize()
    through_host.write(host, target, delta)
    assert same(bits(directly), bits(through_host))
    assert host.keys.shape == (LAYERS, 3, HEADS, HEAD_DIM)
    assert host.values.shape == (LAYERS, 3, HEADS, 8)
    assert (
        host.keys.nbytes + host.values.nbytes
        == 3 * through_host.bytes_per_token
        == 3 * LAYERS * HEADS * (HEAD_DIM + 8) * 4
    )


def test_what_was_read_is_a_copy() -> None:
    slots = pool()
    host = slots.read(torch.tensor([1]))
    before = host.keys.clone()
    slots.keys[0].zero_()
    assert torch.equal(host.keys, before)


@pytest.mark.parametrize(
    ("keys", "values", "message"),
    [
        ([], [], "got 0 and 0"),
        (
            [torch.zeros(4, 2, 16)] * 2,
            [torch.zeros(4, 2, 16)],
            "as many layers of keys as of values, got 2 and 1",
        ),
        ([torch.zeros(4, 32)], [torch.zeros(4, 32)], "slots, kv_heads, head_dim"),
        (
            [torch.zeros(4, 2, 16), torch.zeros(5, 2, 16)],
            [torch.zeros(4, 2, 16)] * 2,
            "equal in all layers",
        ),
        ([torch.zeros(4, 2, 16)], [torch.zeros(5, 2, 16)], "same numbers of slots"),
        ([torch.zeros(4, 2, 16)], [torch.zeros(4, 2, 16).half()], "of one dtype"),
        ([torch.zeros(4, 2, 16).byte()], [torch.zeros(4, 2, 16).byte()], "uint8"),
        ([torch.zeros(4, 2, 8)], [torch.zeros(4, 2, 8)], "heads of 8 dimensions, but RoPE expects 16"),
    ],
)
def test_other_tensors_are_refused(
    keys: list[torch.Tensor], values: list[torch.Tensor], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        KvSlots(keys, values, ROPE)


INTERPRET = """
import torch
from hive.server.kv_segments.rotation import Rope
from hive.server.kv_segments.slots import KvSlots
from hive.server.kv_segments.triton_slots import LayerCopy

def pool(rope, value_dim, dtype):
    generator = torch.Generator().manual_seed(7)
    tensors = [
        [torch.randn((20, 3, dim), generator=generator).to(dtype) for _ in range(2)] for dim in (16, value_dim)
    ]
    tensors[0][0][1] = -0.0
    return KvSlots(*tensors, rope)

source, target = torch.tensor([1, 2, 2, 5]), torch.tensor([10, 15, 16, 19])
for interleaved, partial, value_dim, delta, in_place in [
    (False, 1.0, 16, torch.tensor([0, 100_000, -100_000, 7]), False),
    (False, 1.0, 16, torch.tensor([0, 100_000, -100_000, 7], dtype=torch.int32), True),
    (True, 1.0, 8, -9, False),
    (False, 0.5, 24, torch.tensor([0, 1, 2, 30_000]), False),
    (True, 0.75, 16, torch.tensor([0, 1, 2, 30_000]), True),
    (False, 0.75, 16, 0, False),
]:
    config = {"num_attention_heads": 3, "head_dim": 16, "partial_rotary_factor": partial}
    rope = Rope.from_config(config, interleaved=interleaved)
    expected, actual = pool(rope, value_dim, torch.float32), pool(rope, value_dim, torch.float32)
    assert LayerCopy.fits(actual.keys, actual.values)
    at = target if in_place else source
    expected.copy(at, target, delta)
    LayerCopy(actual.keys, actual.values, rope)(at, target, delta)
    for a, b in zip(actual.keys, expected.keys):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
        assert torch.equal(a[target[0]].view(torch.int32), b[target[0]].view(torch.int32)) or delta == -9
    assert all(torch.equal(a, b) for a, b in zip(actual.values, expected.values))
    assert not LayerCopy.fits([k[:, :, 1:] for k in actual.keys], actual.values)
    assert not LayerCopy.fits([actual.keys[0], actual.keys[1].transpose(1, 2)], actual.values)
"""

COMPILE = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from hive.server.kv_segments import triton_slots

STRIDES = ("key_stride", "key_head_stride", "value_stride", "value_head_stride")
TYPES = {
    "key_pointers": "*i64", "value_pointers": "*i64", "sources": "*i64", "targets": "*i64", "shifts": "*i64",
    "shift": "i32", "frequencies": "*fp64", "like": "*bf16",
}
SIZES = {
    "HEADS": 8, "KEY_DIM": 128, "VALUE_DIM": 128, "HALF": 64, "SHIFT_OF_EACH": True, "INTERLEAVED": False,
    "ELSEWHERE": True, "PADDED_HEADS": 8, "PADDED_HALF": 64, "PADDED_REST": 1, "PADDED_VALUE": 128,
}
OTHER_SIZES = {"SHIFT_OF_EACH": False, "INTERLEAVED": True, "ELSEWHERE": False, "HALF": 24, "PADDED_HALF": 32}
names = triton_slots._copy.arg_names
aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in STRIDES}
for sizes in (SIZES, {**SIZES, **OTHER_SIZES, "PADDED_REST": 128}):
    types = {name: "constexpr" if name in sizes else TYPES.get(name, "i32") for name in names}
    source = ASTSource(triton_slots._copy, types, {name: sizes[name] for name in names if name in sizes}, aligned)
    code = compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4}).asm["ptx"]
    # Where halves are turned, each thread moves several numbers at once.
    assert "st.global" in code
    assert sizes["INTERLEAVED"] or "ld.global.v2.b32" in code or "ld.global.v4.b32" in code
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize(("script", "interpret"), [(INTERPRET, "1"), (COMPILE, "0")], ids=["copy", "compile"])
def test_the_kernel_compiles_and_copies_what_torch_copies(
    script: str, interpret: str, tmp_path: Path
) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": interpret, "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


TOLERANCES = {torch.float32: (1e-5, 1e-6), torch.bfloat16: (2**-7, 1e-6)}
"""Relative and absolute; of bfloat16 one step, where the two round to different sides."""


@needs_cuda
@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES)
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("delta", [100_000, -3, 0, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("in_place", [False, True], ids=["elsewhere", "in place"])
def test_the_kernel_on_a_gpu_copies_what_torch_copies(
    rope: Rope, dtype: torch.dtype, delta: torch.dtype | int, in_place: bool
) -> None:
    value_dim = HEAD_DIM if in_place else 24
    expected, actual = pool(rope, dtype, value_dim=value_dim), pool(rope, dtype, "cuda", value_dim)
    assert actual._copy_of_device is not None
    source, target = torch.tensor([0, 5, 5, 9, 19]), torch.tensor([20, 39, 30, 28, 25])
    if isinstance(delta, torch.dtype):
        delta = torch.tensor([0, 1, -1, 100_000, -99_999], dtype=delta)
    there = target.cuda()
    expected.copy(target if in_place else source, target, delta)
    arguments = (
        there if in_place else source.cuda(),
        there,
        delta.cuda() if isinstance(delta, torch.Tensor) else delta,
    )
    relative, absolute = TOLERANCES[dtype]
    torch.cuda.set_sync_debug_mode("error")
    try:
        actual.copy(*arguments)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for a, b in zip(actual.keys, expected.keys, strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=relative, atol=absolute)
    assert all(torch.equal(a.cpu(), b) for a, b in zip(actual.values, expected.values, strict=True))


@needs_cuda
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_on_a_gpu_nothing_moved_is_the_same_to_the_bit(dtype: torch.dtype) -> None:
    slots = pool(dtype=dtype, device="cuda")
    slots.keys[0][1], slots.keys[0][2] = -0.0, float("inf")
    source, target = torch.arange(20, device="cuda"), torch.arange(20, 40, device="cuda")
    slots.copy(source, target, torch.zeros_like(source))
    for layer in (*slots.keys, *slots.values):
        assert torch.equal(layer[target].view(torch.uint8), layer[source].view(torch.uint8))


@needs_cuda
def test_on_a_gpu_pools_of_unlike_strides_are_copied_by_torch() -> None:
    expected, whole = pool(), pool(device="cuda")
    keys = [*whole.keys[:-1], whole.keys[-1].transpose(1, 2).contiguous().transpose(1, 2)]
    actual = KvSlots(keys, whole.values, ROPE)
    assert actual._copy_of_device is None
    source, target, delta = torch.tensor([1, 2]), torch.tensor([30, 31]), torch.tensor([77, 0])
    expected.copy(source, target, delta)
    arguments = source.cuda(), target.cuda(), delta.cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        actual.copy(*arguments)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for a, b in zip((*actual.keys, *actual.values), (*expected.keys, *expected.values), strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-5, atol=1e-6)


@needs_cuda
def test_on_a_gpu_the_way_to_the_host_and_back_is_pinned_and_waits_for_nothing() -> None:
    slots, expected = pool(device="cuda"), pool()
    source, target = torch.tensor([4, 0, 11]), torch.tensor([20, 39, 25])
    expected.copy(source, target, 50)
    source, target = source.cuda(), target.cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        host = slots.read(source)
        with torch.cuda.stream(torch.cuda.Stream()):
            slots.write(host, target, 50)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    if host.written is not None:
        host.written.synchronize()
    assert host.keys.is_pinned()
    assert host.values.is_pinned()
    for a, b in zip((*slots.keys, *slots.values), (*expected.keys, *expected.values), strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-5, atol=1e-6)
