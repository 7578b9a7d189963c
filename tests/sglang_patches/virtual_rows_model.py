"""Virtual rows on SGLang's own model runner: ``python -m tests.sglang_patches.virtual_rows_model BACKEND DTYPE``.

Run in a process of its own, because a model runner fills its process with global state.  Prints JSON: the relative
errors of what virtual rows compute, against a prefill of the whole context.  Works on a CPU (``torch_native``) and on
a GPU (``triton``, ``flashinfer``).
"""

from __future__ import annotations

import itertools
import json
import random
import sys
from array import array
from typing import Any

import torch
from sglang.benchmark.one_batch import load_model
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.server_args import PortArgs, ServerArgs, set_global_server_args_for_scheduler
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from hive.server.embedded_model import ensure_embedded_model
from hive.server.kv_segments.correctors.base import PlacedRun
from hive.server.kv_segments.correctors.blend import Blend
from hive.server.kv_segments.correctors.recompute_none import RecomputeNone
from hive.server.kv_segments.plan import Piece, Run
from hive.server.kv_segments.request import KvRequest
from hive.server.kv_segments.slots import KvSlots
from sglang_patches.forward.decode_rows import DecodeRows
from sglang_patches.forward.rotary_embedding import rope_of
from sglang_patches.forward.virtual_rows import VirtualRows
from sglang_patches.requests.kv_state import KvState, Lease

HISTORY, SEGMENT, SUFFIX = 40, 40, 12
ROWS = 24
NONE, ALL = DecodeRows(0, 0), DecodeRows(10**9, 10**9)


class Machine:
    """A model runner, and requests with rows of slots in it."""

    def __init__(self, backend: str, dtype: str) -> None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        args = ServerArgs(
            model_path=str(ensure_embedded_model()),
            device=device,
            attention_backend=backend,
            dtype=dtype,
            disable_cuda_graph=device == "cpu",
            cuda_graph_max_bs_decode=64,
            max_total_tokens=8192,
            mem_fraction_static=0.3,
            sampling_backend="pytorch",
            grammar_backend="none",
            disable_overlap_schedule=True,
            context_length=4096,
            max_running_requests=64,
            chunked_prefill_size=2048,
        )
        set_global_server_args_for_scheduler(args)
        loaded, _ = load_model(args, PortArgs.init_new(args), 0, 0)
        self.runner = next((v for v in vars(loaded).values() if type(v).__name__ == "ModelRunner"), loaded)
        # Fewer than its buffers have room for, so that rows take several passes.
        self.runner.max_running_requests = ROWS
        self.table = self.runner.req_to_token_pool.req_to_token
        self.pool = self.runner.token_to_kv_pool
        self.slots = KvSlots(
            self.pool.k_buffer,
            self.pool.v_buffer,
            rope_of(self.runner.model, self.runner.model_config.hf_text_config),
        )
        self._requests = 0

    def request(self, tokens: int) -> int:
        """A row with slots for so many tokens."""
        self._requests += 1
        slots = self.runner.token_to_kv_pool_allocator.alloc(tokens)
        self.table[self._requests, :tokens] = slots.to(self.table.dtype)
        return self._requests

    def batch(self, row: int, start: int, tokens: list[int]) -> ForwardBatch:
        """An extend batch of one request."""
        device, length, end = self.table.device, len(tokens), start + len(tokens)
        batch = ForwardBatch(
            forward_mode=ForwardMode.EXTEND,
            batch_size=1,
            input_ids=torch.tensor(tokens, device=device),
            req_pool_indices=torch.tensor([row], device=device),
            seq_lens=torch.tensor([end], device=device),
            out_cache_loc=self.table[row, start:end].long(),
            seq_lens_sum=end,
            orig_seq_lens=torch.tensor([end], dtype=torch.int32, device=device),
            seq_lens_cpu=torch.tensor([end]),
            positions=torch.arange(start, end, device=device),
            extend_num_tokens=length,
            extend_seq_lens=torch.tensor([length], dtype=torch.int32, device=device),
            extend_prefix_lens=torch.tensor([start], dtype=torch.int32, device=device),
            extend_start_loc=torch.zeros(1, dtype=torch.int32, device=device),
            extend_prefix_lens_cpu=[start],
            extend_seq_lens_cpu=[length],
            extend_logprob_start_lens_cpu=[length],
            spec_algorithm=SpeculativeAlgorithm.NONE,
            capture_hidden_mode=CaptureHiddenMode.NULL,
            lora_ids=[None],
            rids=["request"],
        )
        batch.num_token_non_padded_cpu = length
        return batch

    @torch.no_grad()
    def prefill(self, row: int, start: int, tokens: list[int]) -> torch.Tensor:
        """Logits behind the tokens, [vocabulary]."""
        output = self.runner.forward(self.batch(row, start, tokens))
        return output.logits_output.next_token_logits[0].float().clone()

    def kv(self, row: int, start: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of positions, [layers, tokens, heads, head_dim]."""
        slots = self.table[row, start:end].long()
        return (
            torch.stack([keys[slots] for keys in self.pool.k_buffer]).float(),
            torch.stack([values[slots] for values in self.pool.v_buffer]).float(),
        )


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def main(backend: str, dtype: str) -> dict[str, Any]:
    random.seed(1)
    machine = Machine(backend, dtype)
    history, segment, suffix = (
        [random.randrange(100, 40000) for _ in range(n)] for n in (HISTORY, SEGMENT, SUFFIX)
    )
    begin, end = HISTORY, HISTORY + SEGMENT
    tokens = history + segment + suffix

    whole = machine.request(len(tokens))
    exact = machine.prefill(whole, 0, tokens)
    exact_kv = machine.kv(whole, begin, end)
    split = machine.request(len(tokens))
    machine.prefill(split, 0, history)
    machine.prefill(split, HISTORY, segment)
    # How far two exact prefills of the same context are apart: kernels differ by their shapes.
    noise = error(machine.prefill(split, end, suffix), exact)
    noise_kv = max(error(*pair) for pair in zip(machine.kv(split, begin, end), exact_kv, strict=True))

    alone = machine.request(SEGMENT)
    machine.prefill(alone, 0, segment)

    def placed() -> int:
        row = machine.request(len(tokens))
        machine.prefill(row, 0, history)
        machine.slots.copy(
            machine.table[alone, :SEGMENT].long(), machine.table[row, begin:end].long(), HISTORY
        )
        return row

    def rows_of(row: int, decode_rows: DecodeRows = NONE) -> VirtualRows:
        state = KvState(KvRequest(), RecomputeNone(), "", "", array("q", tokens))
        batch = machine.batch(row, end, suffix)
        return VirtualRows(machine.runner, batch, [state], machine.runner.forward, decode_rows)

    cuts = [0, *sorted(random.sample(range(1, SEGMENT), 8)), SEGMENT]
    few = sorted(random.sample(range(begin, end), 6))
    found: dict[str, Any] = {"noise": {"kv": noise_kv, "logits": noise}}
    found["placed"] = {"logits": error(machine.prefill(placed(), end, suffix), exact)}
    whole_run = [Run(begin, end, begin)]
    random_runs = [Run(begin + a, begin + b, begin + a) for a, b in itertools.pairwise(cuts)]
    for name, runs, decode_rows in (
        ("one run", whole_run, NONE),
        ("random runs", random_runs, NONE),
        ("one-token rows", [Run(at, at + 1, at) for at in range(begin, end)], NONE),
        ("one run as a decode batch", whole_run, ALL),
        ("random runs as a decode batch", random_runs, ALL),
    ):
        row = placed()
        with torch.no_grad():
            output = rows_of(row, decode_rows).compute(runs)
        together = error(output.logits_output.next_token_logits[0].float().clone(), exact)
        kv = max(error(*pair) for pair in zip(machine.kv(row, begin, end), exact_kv, strict=True))
        found[name] = {
            "kv": kv,
            "logits": error(machine.prefill(row, end, suffix), exact),
            "together": together,
        }

    # The suffix alone, behind exact KV.
    row = machine.request(len(tokens))
    machine.prefill(row, 0, [*history, *segment])
    with torch.no_grad():
        output = ALL.run(machine.batch(row, end, suffix), machine.runner.forward)
    found["a decode batch"] = {
        "logits": error(output.logits_output.next_token_logits[0].float().clone(), exact),
        "kv": max(
            error(*pair)
            for pair in zip(
                machine.kv(row, end, end + SUFFIX), machine.kv(whole, end, end + SUFFIX), strict=True
            )
        ),
    }

    row = placed()
    before = machine.kv(row, begin, end)
    with torch.no_grad():
        rows_of(row).compute([Run(at, at + 1, at) for at in few])
    after = machine.kv(row, begin, end)
    others = [at - begin for at in range(begin, end) if at not in few]
    found["untouched"] = all(
        bool(torch.equal(old[:, others], new[:, others])) for old, new in zip(before, after, strict=True)
    )

    row = placed()
    piece = Piece(begin, end, begin, object())
    empty = torch.zeros(0, dtype=torch.int64)
    lease = Lease(begin, [piece], [], empty, empty, empty, [PlacedRun(begin, end)], [])
    with torch.no_grad():
        deviation = rows_of(row).deviation(0, lease)
    expected = (exact_kv[1][1] - machine.kv(row, begin, end)[1][1]).square().sum((1, 2)).cpu().numpy()
    found["deviation"] = float(abs(deviation - expected).max() / expected.max())
    chosen = Blend(0.15).select(lease.placed, deviation)
    found["same choice"] = len(set(chosen) & set(Blend(0.15).select(lease.placed, expected))) / len(chosen)
    found["probe leaves KV alone"] = all(
        bool(torch.equal(*pair)) for pair in zip(before, machine.kv(row, begin, end), strict=True)
    )
    return found


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
