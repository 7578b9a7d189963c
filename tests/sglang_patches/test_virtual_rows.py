"""Virtual rows against a prefill of the whole context, on SGLang's own model runner and attention backends.

On a CPU with ``torch_native`` in float32, which takes over a minute; on a machine with a GPU with its backends in
bfloat16.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

CASES = (
    [("triton", "bfloat16"), ("flashinfer", "bfloat16")]
    if torch.cuda.is_available()
    else [("torch_native", "float32")]
)


@pytest.mark.long
@pytest.mark.parametrize(("backend", "dtype"), CASES)
def test_virtual_rows_are_as_a_prefill(backend: str, dtype: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.sglang_patches.virtual_rows_model", backend, dtype],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    found = json.loads(run.stdout.splitlines()[-1])
    # Two exact prefills in other shapes differ by `noise`; in float32 that is 1e-6.
    logits, kv = max(found["noise"]["logits"], 3e-6), max(found["noise"]["kv"], 3e-6)
    assert found["a decode batch"]["kv"] <= 1.5 * kv, found
    assert found["a decode batch"]["logits"] <= 6 * logits, found
    as_decode = [f"{case} as a decode batch" for case in ("one run", "random runs")]
    for case in ("one run", "random runs", "one-token rows", *as_decode):
        assert found[case]["kv"] <= 1.5 * kv, (case, found)
        assert found[case]["logits"] <= 6 * logits, (case, found)
        assert found[case]["together"] <= 6 * logits, (case, found)
    # Placed KV is far from that, so there was something to compute.
    assert found["placed"]["logits"] > 5 * max(logits, found["one run"]["logits"])
    assert found["untouched"]
    assert found["probe leaves KV alone"]
    assert found["deviation"] <= (1e-5 if dtype == "float32" else 0.02)
    assert found["same choice"] == 1.0
