"""The kernels against their torch reference, in Triton's interpreter: it needs no GPU, and a process of its own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import numpy as np
import torch
from hive.server.logits_cache import triton_sampling
from hive.server.logits_cache.device_sampling import draw_rows

triton_sampling.BLOCK, triton_sampling.WIDE = 64, 128
rng = np.random.default_rng(1)
everything = 1 << 30
for round_number in range(40):
    vocabulary, batch = int(rng.integers(20, 300)), 3
    rows = rng.normal(size=(batch, vocabulary)) * float(rng.choice([0.1, 1, 3]))
    rows = np.round(rows, int(rng.choice([1, 2, 6]))).astype(np.float32)
    if round_number % 3 == 0:
        rows[:, 1:][rng.random((batch, vocabulary - 1)) < 0.5] = -np.inf
    if round_number % 8 == 0:
        rows[0, :3] = np.nan, np.inf, -0.0
    logits = torch.tensor(rows)
    temperatures = torch.tensor(rng.choice([0.3, 1.0, 2.0], batch), dtype=torch.float32)
    top_ks = torch.tensor(rng.choice([1, 2, 3, 40, everything], batch)).int()
    top_ps = torch.tensor(rng.choice([0.2, 0.9, 1.0], batch), dtype=torch.float32)
    min_ps = torch.tensor(rng.choice([0, 0.1, 0.02], batch), dtype=torch.float32)
    seeds, positions = torch.tensor(rng.integers(0, 2**62, batch)), torch.arange(batch)
    rules = (temperatures, top_ks, top_ps, min_ps, seeds, positions)
    reference = draw_rows(logits, *rules, 8)
    values, ids = logits.nan_to_num(nan=-torch.inf, posinf=3.4028234663852886e38, neginf=-torch.inf).topk(8)
    tokens, heads, scalars = triton_sampling.draw_rows(logits, values, ids.int(), *rules, 4e-5)
    # Greedy sampling from more equal maxima than a head holds may give any of them.
    settled = (top_ks > 1) | (reference.scalars[:, 0] > 0)
    assert torch.equal(tokens[settled], reference.tokens[settled]), round_number
    assert torch.equal(heads, reference.heads), round_number
    assert torch.equal(scalars[:, :3], reference.scalars[:, :3]), round_number
    assert torch.allclose(scalars[:, 3], reference.scalars[:, 3], rtol=1e-6), round_number
    assert torch.allclose(scalars[settled, 4], reference.scalars[settled, 4], rtol=1e-5), round_number
"""


COMPILE = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from hive.server.logits_cache import triton_sampling

TYPES = {
    "logits": "*fp32", "top_values": "*fp32", "top_ids": "*i32", "temperatures": "*fp32", "top_ks": "*i32",
    "top_ps": "*fp32", "min_ps": "*fp32", "seeds": "*i64", "positions": "*i64", "sums": "*fp32", "counts": "*i32",
    "tokens": "*i32", "heads": "*i32", "scalars": "*fp64", "min_probability": "fp32",
}
SIZES = {"K": 512, "PADDED": 512, "MIN_TOKENS": 20, "BLOCKS": 256, "BLOCK": 1024, "WIDE": 8192}
for kernel in (triton_sampling._tail_sums, triton_sampling._draw):
    names = kernel.arg_names
    types = {name: "constexpr" if name in SIZES else TYPES.get(name, "i32") for name in names}
    source = ASTSource(kernel, types, {name: SIZES[name] for name in names if name in SIZES})
    assert compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8}).asm["ptx"]
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize(("script", "interpret"), [(SCRIPT, "1"), (COMPILE, "0")], ids=["draw", "compile"])
def test_the_kernels_compile_and_draw_what_the_torch_reference_draws(
    script: str, interpret: str, tmp_path: Path
) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": interpret, "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
