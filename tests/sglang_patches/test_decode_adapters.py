"""When the adapters of a batch are described to the device, and that the device then knows those of every row."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang.srt.lora.backend.chunked_backend import ChunkedSgmvLoRABackend
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode
from sglang.srt.model_executor.runner import DecodeCudaGraphRunner

from sglang_patches.forward.decode_adapters import AdapterSlots, DecodeAdapters
from sglang_patches.forward.decode_rows import DecodeRows
from tests.sglang_patches.test_decode_rows import extend

SIZES = [1, 2, 4, 8]
NO_ROWS = DecodeRows(0, 0)
RANKS = [0, 16, 8]
"""By buffer: none, and two adapters."""


class Device:
    """The decode graphs' buffers, and SGLang's way to write them."""

    def __init__(self, rows: DecodeRows = NO_ROWS) -> None:
        self.backend = SimpleNamespace(
            cuda_graph_batch_info=object(), batch_info=None, lm_head_batch_info=object()
        )
        self.adapters = DecodeAdapters(self.backend, rows, SIZES)  # type: ignore[arg-type]
        self.buffers: AdapterSlots | None = None
        self.writes = 0

    def prepare(self, batch: ForwardBatch, rows: list[int]) -> None:
        used = [rank if buffer in rows else 0 for buffer, rank in enumerate(RANKS)]
        slots = AdapterSlots(rows, used, [float(rank) for rank in used])
        graph = batch.forward_mode.is_decode() and batch.batch_size <= SIZES[-1]

        def write(batch: ForwardBatch, buffers: list[int]) -> None:
            assert batch.batch_size == len(buffers)
            self.writes += 1
            self.backend.batch_info = self.backend.cuda_graph_batch_info if graph else object()
            if graph:
                self.buffers = AdapterSlots(buffers, slots.ranks, slots.scalings)

        self.adapters.prepare(batch, slots, write, use_cuda_graph=graph)


def decode(count: int) -> ForwardBatch:
    batch = extend([5] * count, [1] * count)
    batch.forward_mode = ForwardMode.DECODE
    return batch


@given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 2), min_size=1, max_size=10)), max_size=12))
def test_a_step_finds_the_adapters_of_its_rows(steps: list[tuple[bool, list[int]]]) -> None:
    device = Device()
    for is_decode, rows in steps:
        device.prepare(decode(len(rows)) if is_decode else extend([5] * len(rows), [3] * len(rows)), rows)
        if is_decode and len(rows) <= SIZES[-1]:
            assert device.buffers is not None
            assert device.buffers.rows[: len(rows)] == rows
            assert all(device.buffers.ranks[row] == RANKS[row] for row in rows)
            assert device.backend.batch_info is device.backend.cuda_graph_batch_info
        else:
            assert device.backend.batch_info is not device.backend.cuda_graph_batch_info


def test_equal_adapters_are_written_once_per_graph() -> None:
    device = Device()
    for count in (8, 7, 5, 6):
        device.prepare(decode(count), [1] * count)
    assert device.writes == 1
    assert device.buffers is not None
    assert device.buffers.rows == [1] * 8, "the graph of eight rows runs five as well"
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
    assert device.writes == 2
    assert device.backend.batch_info is device.backend.cuda_graph_batch_info
    assert device.backend.lm_head_batch_info is None, "that of the prefill is not the step's"


def test_a_failed_write_is_repeated() -> None:
    device = Device()
    slots = AdapterSlots([1, 1], RANKS, [0.0, 1.0, 1.0])
    write = Mock(side_effect=[RuntimeError, None])
    with pytest.raises(RuntimeError):
        device.adapters.prepare(decode(2), slots, write, use_cuda_graph=True)
    device.adapters.prepare(decode(2), slots, write, use_cuda_graph=True)
    assert write.call_count == 2


def test_a_short_extend_is_described_row_by_row_only() -> None:
    device = Device(DecodeRows(max_rows=8, max_read_tokens=1000))
    short = extend([5, 9], [3, 1])
    device.prepare(short, [1, 2])
    assert device.writes == 0
    device.prepare(extend([5], [20]), [1])
    assert device.writes == 1, "too long for decode rows"


def runner(**changed: Any) -> Any:
    args = SimpleNamespace(enable_lora=True, enable_two_batch_overlap=False, enable_pdmux=False)
    vars(args).update({name: value for name, value in changed.items() if name != "backend"})
    graphs = Mock(spec=DecodeCudaGraphRunner, capture_bs=[4, 1, 2])
    backend = changed.get("backend") or Mock(spec=ChunkedSgmvLoRABackend)
    return SimpleNamespace(
        decode_cuda_graph_runner=graphs, server_args=args, lora_manager=SimpleNamespace(lora_backend=backend)
    )


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
