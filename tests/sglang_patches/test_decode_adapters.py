"""When the adapters of a batch are described to the device, and that the device then knows those of every row."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sglang.srt.lora.backend.chunked_backend import ChunkedSgmvLoRABackend
from sglang.srt.lora.utils import LoRABatchInfo
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode
from sglang.srt.model_executor.runner import DecodeCudaGraphRunner

from sglang_patches.forward.decode_adapters import AdapterSlots, DecodeAdapters, GraphBuffers
from sglang_patches.forward.decode_rows import DecodeRows
from sglang_patches.hooks.chunked_backend import around_prepare_lora_batch
from sglang_patches.hooks.lora_manager import _Unpinned
from tests.sglang_patches.test_decode_rows import extend

SIZES = [1, 2, 4, 8, 40, 96]
NO_ROWS = DecodeRows(0, 0)
RANKS = [0, 16, 8]
"""By buffer: none, and two adapters."""


def backend(max_chunk: int = 128) -> Any:
    """SGLang's backend on the CPU, with the buffers of decode graphs."""
    made = ChunkedSgmvLoRABackend(
        len(RANKS), torch.device("cpu"), SimpleNamespace(max_lora_chunk_size=max_chunk)
    )

    def zeros(count: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.zeros(count, dtype=dtype)

    rows = SIZES[-1]
    made.cuda_graph_batch_info = LoRABatchInfo(
        bs=rows,
        use_cuda_graph=True,
        num_segments=0,
        max_len=None,
        seg_lens=zeros(rows),
        seg_indptr=zeros(rows + 1),
        weight_indices=zeros(rows),
        permutation=zeros(rows),
        lora_ranks=zeros(len(RANKS)),
        scalings=zeros(len(RANKS), torch.float32),
        req_seg_indptr=zeros(rows + 1),
        req_weight_indices=zeros(rows),
    )
    return made


def decode(count: int) -> ForwardBatch:
    batch = extend([5] * count, [1] * count)
    batch.forward_mode = ForwardMode.DECODE
    return batch


def slots_of(rows: list[int]) -> AdapterSlots:
    used = [rank if buffer in rows else 0 for buffer, rank in enumerate(RANKS)]
    return AdapterSlots(rows, used, [rank / 4 for rank in used])


def as_sglang(made: Any, batch: ForwardBatch, slots: AdapterSlots, graph: bool) -> None:
    with _Unpinned():
        ChunkedSgmvLoRABackend.prepare_lora_batch(
            made, batch, slots.rows, slots.ranks, slots.scalings, use_cuda_graph=graph
        )


def shown(info: LoRABatchInfo) -> dict[str, Any]:
    """What the kernels of a graph read."""
    values = {item.name: getattr(info, item.name) for item in fields(info) if item.name != "has_active_lora"}
    return {
        name: value[: info.bs].tolist() if isinstance(value, torch.Tensor) else value
        for name, value in values.items()
    } | {"seg_indptr": info.seg_indptr.tolist(), "weight_indices": info.weight_indices.tolist()}


@given(
    st.lists(st.sampled_from(SIZES).flatmap(lambda size: st.lists(st.integers(0, 2), min_size=size, max_size=size)),
             min_size=1, max_size=4),
    st.sampled_from([16, 32, 128]),
)  # fmt: skip
def test_buffers_are_written_as_sglang_writes_them(steps: list[list[int]], max_chunk: int) -> None:
    ours, theirs = backend(max_chunk), backend(max_chunk)
    buffers = GraphBuffers(ours.cuda_graph_batch_info)
    for rows in steps:
        buffers.write(slots_of(rows), ours._determine_chunk_size_for_tokens(len(rows)))
        as_sglang(theirs, decode(len(rows)), slots_of(rows), graph=True)
        assert shown(ours.cuda_graph_batch_info) == shown(theirs.cuda_graph_batch_info)


class Device:
    """A device, asked as SGLang's manager asks."""

    def __init__(self, rows: DecodeRows = NO_ROWS) -> None:
        self.backend = backend()
        self.backend.hive_adapters = self.adapters = DecodeAdapters(self.backend, rows, SIZES)
        self.adapters._buffers.write = Mock(wraps=self.adapters._buffers.write)  # type: ignore[method-assign]

    @property
    def info(self) -> LoRABatchInfo:
        return self.backend.cuda_graph_batch_info  # type: ignore[no-any-return]

    @property
    def writes(self) -> int:
        return self.adapters._buffers.write.call_count  # type: ignore[attr-defined,no-any-return]

    def prepare(self, batch: ForwardBatch, rows: list[int]) -> None:
        slots = slots_of(rows)
        graph = batch.forward_mode.is_decode() and batch.batch_size <= SIZES[-1]
        with _Unpinned():
            around_prepare_lora_batch(
                ChunkedSgmvLoRABackend.prepare_lora_batch,
                self.backend,
                batch,
                slots.rows,
                slots.ranks,
                slots.scalings,
                graph,
            )


@given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 2), min_size=1, max_size=10)), max_size=8))
def test_a_step_finds_the_adapters_of_its_rows(steps: list[tuple[bool, list[int]]]) -> None:
    device = Device()
    for is_decode, rows in steps:
        device.prepare(decode(len(rows)) if is_decode else extend([5] * len(rows), [3] * len(rows)), rows)
        assert (device.backend.batch_info is device.info) == is_decode
        if is_decode:
            order = device.info.permutation.tolist()  # type: ignore[union-attr]
            starts, buffers = device.info.seg_indptr.tolist(), device.info.weight_indices.tolist()
            found = {
                order[at]: buffers[segment]
                for segment in range(device.info.num_segments)
                for at in range(starts[segment], starts[segment + 1])
            }
            assert [found[row] for row in range(len(rows))] == rows
            assert [device.info.lora_ranks[row] for row in rows] == [RANKS[row] for row in rows]


def test_equal_adapters_are_written_once_per_graph() -> None:
    device = Device()
    for count in (8, 7, 5, 6):
        device.prepare(decode(count), [1] * count)
    assert device.writes == 1
    device.prepare(decode(4), [1] * 4)
    assert device.writes == 2
    device.prepare(decode(4), [1, 1, 1, 2])
    assert device.writes == 3


def test_a_prefill_in_between_writes_elsewhere() -> None:
    device = Device()
    device.prepare(decode(2), [1, 2])
    device.prepare(extend([0], [500]), [2])
    device.backend.lm_head_batch_info = object()
    device.prepare(decode(2), [1, 2])
    assert device.writes == 1
    assert device.backend.batch_info is device.info
    assert device.backend.lm_head_batch_info is None, "that of the prefill is not the step's"


def test_what_sglang_writes_is_not_taken_for_ours() -> None:
    device = Device()
    device.prepare(decode(2), [1, 2])
    embedded = decode(2)
    embedded.replace_embeds = torch.zeros(1)
    device.prepare(embedded, [2, 2])
    device.prepare(decode(2), [1, 2])
    assert device.writes == 2


def test_a_failed_write_is_repeated() -> None:
    device = Device()
    write = device.adapters._buffers.write
    device.adapters._buffers.write = Mock(side_effect=RuntimeError)  # type: ignore[method-assign]
    with pytest.raises(RuntimeError):
        device.prepare(decode(2), [1, 1])
    device.adapters._buffers.write = write  # type: ignore[method-assign]
    device.prepare(decode(2), [1, 1])
    assert device.writes == 1


def test_a_short_extend_is_described_row_by_row_only() -> None:
    device = Device(DecodeRows(max_rows=8, max_read_tokens=1000))
    device.prepare(extend([5, 9], [3, 1]), [1, 2])
    assert device.backend.batch_info is None
    device.prepare(extend([5], [20]), [1])
    assert device.backend.batch_info is not None, "too long for decode rows"


def runner(**changed: Any) -> Any:
    args = SimpleNamespace(enable_lora=True, enable_two_batch_overlap=False, enable_pdmux=False)
    vars(args).update({name: value for name, value in changed.items() if name != "backend"})
    graphs = Mock(spec=DecodeCudaGraphRunner, capture_bs=[4, 1, 2])
    lora = SimpleNamespace(lora_backend=changed.get("backend") or backend())
    return SimpleNamespace(decode_cuda_graph_runner=graphs, server_args=args, lora_manager=lora)


@pytest.mark.parametrize(
    ("changed", "installed"),
    [
        ({}, True),
        ({"enable_lora": False}, False),
        ({"enable_pdmux": True}, False),
        ({"enable_two_batch_overlap": True}, False),
        ({"backend": SimpleNamespace()}, False),
    ],
)
def test_where_copies_are_skipped(changed: dict[str, Any], installed: bool) -> None:
    model_runner = runner(**changed)
    DecodeAdapters.install(model_runner, DecodeRows(8, 100))
    assert hasattr(model_runner.lora_manager.lora_backend, "hive_adapters") == installed
