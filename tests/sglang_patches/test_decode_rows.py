"""An extend batch as a decode batch: what its rows are. What they compute is in ``test_virtual_rows``."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.model_executor.runner import DecodeCudaGraphRunner, EagerRunner
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from sglang_patches.forward.decode_rows import DecodeRows, as_decode

ALL = DecodeRows(max_rows=10**6, max_read_tokens=10**9)


def extend(prefixes: list[int], lengths: list[int], **other: Any) -> ForwardBatch:
    """An extend batch of requests that have so many tokens already, and get so many."""
    ends = [prefix + length for prefix, length in zip(prefixes, lengths, strict=True)]
    starts = [sum(lengths[:row]) for row in range(len(lengths))]
    number = sum(lengths)

    def int32(numbers: list[int]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int32)

    batch = ForwardBatch(
        forward_mode=ForwardMode.EXTEND,
        batch_size=len(lengths),
        input_ids=torch.arange(100, 100 + number),
        req_pool_indices=torch.arange(7, 7 + len(lengths)),
        seq_lens=torch.tensor(ends),
        out_cache_loc=torch.arange(500, 500 + number),
        seq_lens_sum=sum(ends),
        orig_seq_lens=int32(ends),
        seq_lens_cpu=torch.tensor(ends),
        # Not where the tokens are in the row: messages of a choreography have positions of their own.
        positions=torch.arange(900, 900 + number),
        extend_num_tokens=number,
        extend_seq_lens=int32(lengths),
        extend_prefix_lens=int32(prefixes),
        extend_start_loc=int32(starts),
        extend_prefix_lens_cpu=prefixes,
        extend_seq_lens_cpu=lengths,
        extend_logprob_start_lens_cpu=lengths,
        capture_hidden_mode=CaptureHiddenMode.NULL,
        lora_ids=[None] * len(lengths),
        rids=[f"request {row}" for row in range(len(lengths))],
    )
    return replace(batch, **other)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5)), min_size=1, max_size=4))
def test_every_token_is_a_row_that_reads_its_prefix(requests: list[tuple[int, int]]) -> None:
    batch = extend([prefix for prefix, _ in requests], [length for _, length in requests])
    steps = as_decode(batch)
    expected = [
        (7 + row, prefix + at + 1, f"request {row}")
        for row, (prefix, length) in enumerate(requests)
        for at in range(length)
    ]
    assert steps.forward_mode == ForwardMode.DECODE
    assert steps.batch_size == len(expected)
    rows = zip(steps.req_pool_indices.tolist(), steps.seq_lens.tolist(), steps.rids, strict=True)
    assert list(rows) == expected
    assert steps.seq_lens.dtype == torch.int64
    assert steps.seq_lens_cpu.tolist() == steps.orig_seq_lens.tolist() == steps.seq_lens.tolist()
    assert steps.seq_lens_sum == sum(length for _, length, _ in expected)
    for name in ("input_ids", "positions", "out_cache_loc"):
        assert getattr(steps, name).tolist() == getattr(batch, name).tolist()
    assert steps.extend_seq_lens is None
    # The batch itself stays as it was, for whoever samples from it.
    assert batch.forward_mode == ForwardMode.EXTEND


def test_the_output_has_the_logits_of_each_last_token() -> None:
    batch = extend([3, 0], [2, 3])

    def forward(steps: ForwardBatch) -> Any:
        logits = steps.input_ids[:, None].float()
        return SimpleNamespace(logits_output=SimpleNamespace(next_token_logits=logits))

    output = ALL.run(batch, forward)
    assert output.logits_output.next_token_logits.tolist() == [[101.0], [104.0]]


def test_only_as_many_rows_as_there_are_graphs_for() -> None:
    batch = extend([3, 0], [2, 3])
    assert DecodeRows(5, 10**9).fits(batch)
    assert not DecodeRows(4, 10**9).fits(batch)
    assert not DecodeRows(0, 0).fits(batch)


def test_rows_do_not_read_a_long_context_too_often() -> None:
    batch = extend([1000], [3])
    assert DecodeRows(8, 1001 + 1002 + 1003).fits(batch)
    assert not DecodeRows(8, 1001 + 1002 + 1003 - 1).fits(batch)


@pytest.mark.parametrize(
    "other",
    [
        {"forward_mode": ForwardMode.TARGET_VERIFY},
        {"return_logprob": True},
        {"capture_hidden_mode": CaptureHiddenMode.LAST},
        {"input_embeds": torch.zeros(2, 4)},
        {"replace_embeds": torch.zeros(2, 4)},
        {"mm_inputs": [Mock()]},
    ],
    ids=lambda other: next(iter(other)),
)
def test_batches_that_graphs_do_not_support_run_as_extends(other: dict[str, Any]) -> None:
    assert ALL.fits(extend([3], [2]))
    assert not ALL.fits(extend([3], [2], **other))


def test_a_batch_that_is_mixed_with_running_requests_goes_as_rows() -> None:
    batch = extend([3, 7, 9], [2, 1, 1], forward_mode=ForwardMode.MIXED)
    assert ALL.fits(batch)
    assert as_decode(batch).seq_lens.tolist() == [4, 5, 8, 10]


def test_every_row_has_the_adapter_of_its_request() -> None:
    prepared: list[ForwardBatch] = []
    rows = DecodeRows(10, 10**9, prepare_adapters=prepared.append)
    happened: list[int] = []

    def forward(steps: ForwardBatch) -> Any:
        happened.append(len(prepared))
        return SimpleNamespace(logits_output=SimpleNamespace(next_token_logits=steps.input_ids[:, None]))

    rows.run(extend([3, 0], [2, 3], lora_ids=["proposer", None]), forward)
    assert [batch.lora_ids for batch in prepared] == [["proposer", "proposer", None, None, None]]
    assert prepared[0].forward_mode == ForwardMode.DECODE
    assert happened == [1]


def test_rows_wait_for_kv_that_is_loaded_from_the_host() -> None:
    waited: list[int] = []
    pool = SimpleNamespace(layer_transfer_counter=SimpleNamespace(num_layers=4, wait_until=waited.append))
    happened: list[list[int]] = []

    def forward(steps: ForwardBatch) -> Any:
        happened.append(list(waited))
        return SimpleNamespace(logits_output=SimpleNamespace(next_token_logits=steps.input_ids[:, None]))

    DecodeRows(10, 10**9, pool=pool).run(extend([3, 0], [2, 3]), forward)
    assert happened == [[3]], "for the last of four layers, before the step"


def runner(graphs: Any, *, manager: Any = None, pool: type = MHATokenToKVPool, **flags: Any) -> Any:
    """A model of 4,000 bytes, whose KV takes 16 for a token in each of two layers."""
    graphs.max_bs = 24
    model = torch.nn.Linear(100, 10, bias=False)
    kv = pool.__new__(pool)
    kv.k_buffer = kv.v_buffer = [torch.zeros(50, 2, 2, dtype=torch.bfloat16) for _ in range(2)]
    args = {
        "enable_lora": False,
        "enable_deterministic_inference": False,
        "disable_cuda_graph_padding": False,
        "enable_dp_attention": False,
        "pp_size": 1,
    }
    return SimpleNamespace(
        decode_cuda_graph_runner=graphs,
        server_args=SimpleNamespace(**{**args, **flags}),
        token_to_kv_pool=kv,
        lora_manager=manager,
        is_generation=True,
        max_running_requests=6,
        spec_algorithm=SpeculativeAlgorithm.NONE,
        model_config=SimpleNamespace(is_encoder_decoder=False),
        model=model,
    )


NOTHING = DecodeRows(0, 0)


def test_the_bounds_are_those_of_the_graphs_and_the_weights() -> None:
    graphs = DecodeCudaGraphRunner.__new__(DecodeCudaGraphRunner)
    for mode in ("auto", "on"):
        rows = DecodeRows.of(runner(graphs), mode)
        assert (rows.max_rows, rows.max_read_tokens) == (24, 4000 // (2 * 2 * 8))
    assert DecodeRows.of(runner(graphs), "off") == NOTHING
    for flag in ("enable_deterministic_inference", "disable_cuda_graph_padding", "enable_dp_attention"):
        assert DecodeRows.of(runner(graphs, **{flag: True}), "on") == NOTHING
    assert DecodeRows.of(runner(graphs, pp_size=2), "on") == NOTHING
    assert DecodeRows.of(runner(graphs, pool=MLATokenToKVPool), "on") == NOTHING


def test_without_graphs_a_decode_step_is_no_quicker_than_an_extend() -> None:
    graphs = EagerRunner.__new__(EagerRunner)
    assert DecodeRows.of(runner(graphs), "auto") == NOTHING
    assert DecodeRows.of(runner(graphs), "on").max_rows == 6


def test_adapters_are_prepared_if_there_are_any() -> None:
    graphs = DecodeCudaGraphRunner.__new__(DecodeCudaGraphRunner)
    manager = SimpleNamespace(prepare_lora_batch=Mock(), lora_backend=SimpleNamespace(is_moe_lora=False))
    rows = DecodeRows.of(runner(graphs, manager=manager, enable_lora=True), "auto")
    assert rows.prepare_adapters is manager.prepare_lora_batch
    manager.lora_backend.is_moe_lora = True
    assert DecodeRows.of(runner(graphs, manager=manager, enable_lora=True), "auto") == NOTHING
