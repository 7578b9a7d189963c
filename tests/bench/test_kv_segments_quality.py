"""The town meeting: what is asked, and distances of distributions from hidden states."""

from __future__ import annotations

import json
import math
import zlib
from pathlib import Path

import pytest
import torch
from rich.console import Console

from bench.harness.client import BenchError, Client
from bench.kv_segments.distributions import distance, generated_states, head_of, last_states
from bench.kv_segments.encoding import RealText
from bench.kv_segments.quality import CONTEXTS, FORCED, QualitySession, Setup, correctors
from bench.kv_segments.report import quality_rows
from bench.kv_segments.town_meeting import NEWS, readers, rounds
from tests.bench.kv_segments_server import HIDDEN, VOCABULARY, StandIn
from tests.frontend.http_server import Received


class Words(RealText):
    """A token for each word, so that no model is needed."""

    def __init__(self) -> None:
        pass

    def __call__(self, text: str, name: str = "") -> list[int]:
        return [zlib.crc32(word.encode()) % 5000 for word in text.split(" ")]


def head() -> torch.Tensor:
    return torch.randn(VOCABULARY, HIDDEN, generator=torch.Generator().manual_seed(0))


def test_distance_of_distributions_that_are_known() -> None:
    # With one hidden unit and weights log p, a state of 1 has the distribution p.
    p, q = [0.5, 0.25, 0.25], [0.25, 0.5, 0.25]
    weights = torch.tensor([[math.log(a), math.log(b)] for a, b in zip(p, q, strict=True)])
    of_p, of_q = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    found = distance(torch.stack([of_p, of_q, of_p]), torch.stack([of_p, of_p, of_q]), weights)
    kl_pq = 0.5 * math.log(2) - 0.25 * math.log(2)
    assert found.kl == pytest.approx([0.0, kl_pq, kl_pq], abs=1e-6)
    assert found.same_top == (True, False, False)
    assert found.logprob_error == pytest.approx(math.log(2), abs=1e-6)
    assert found.hidden_error == pytest.approx(math.sqrt(4 / 3))


def test_distance_does_not_drown_in_rounding() -> None:
    states = torch.randn(5, HIDDEN, generator=torch.Generator().manual_seed(1))
    found = distance(states, states * (1 + 1e-6), head())
    assert max(found.kl) < 1e-10
    assert all(value > -1e-12 for value in found.kl)
    assert found.hidden_error == pytest.approx(1e-6, rel=0.1)


def test_states_of_a_prompts_end_and_of_an_output() -> None:
    prompt = [[0.0], [1.0], [2.0], [3.0]]
    meta = {"hidden_states": [prompt, [4.0], [5.0]]}
    assert last_states(meta, 2).tolist() == [[2.0], [3.0]]
    assert generated_states(meta, 3).tolist() == [[3.0], [4.0], [5.0]]
    with pytest.raises(BenchError, match="gave 4 hidden states of a prompt's end, not 5"):
        last_states(meta, 5)
    with pytest.raises(BenchError, match="--enable-return-hidden-states"):
        last_states({}, 1)
    with pytest.raises(BenchError, match="3 hidden states of an output, not 2"):
        generated_states(meta, 2)


@pytest.mark.parametrize("tied", [True, False])
def test_output_weights_of_a_model(tied: bool, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    (tmp_path / "config.json").write_text(json.dumps({"tie_word_embeddings": tied}))
    embedding = torch.arange(6.0).reshape(3, 2).bfloat16()
    save_file({"model.embed_tokens.weight": embedding}, tmp_path / "a.safetensors")
    if not tied:
        with pytest.raises(BenchError, match=r"has no lm_head\.weight"):
            head_of(tmp_path)
        save_file({"lm_head.weight": -embedding}, tmp_path / "b.safetensors")
    found = head_of(tmp_path)
    assert found.dtype == torch.float32
    assert torch.equal(found, embedding.float() if tied else -embedding.float())


def test_readers_see_the_same_messages_in_orders_of_their_own() -> None:
    encode = Words()
    orders = set()
    for number in range(rounds()):
        meeting = readers(number, encode)
        assert [reader.agent for reader in meeting] == [0, 1, 2]
        for reader in meeting:
            prompt = reader.prompt
            assert len(reader.spans()) == 4
            for (begin, end), block in zip(reader.spans(), reader.blocks, strict=True):
                assert tuple(prompt[begin:end]) == block.tokens
            assert reader.spans()[-1][1] == len(prompt) - len(reader.task)
            # The news come first, and nobody made them; then what the reader said himself.
            assert reader.blocks[NEWS].history == ()
            assert reader.blocks[1].history == reader.history
            orders.add(tuple(sorted(meeting[0].blocks, key=id).index(block) for block in reader.blocks))
        assert len({reader.blocks for reader in meeting}) == 3
        assert len({frozenset(reader.blocks) for reader in meeting}) == 1


def test_texts_are_of_the_size_of_the_experiment() -> None:
    for number in range(rounds()):
        for reader in readers(number, Words()):
            assert all(60 < len(block.tokens) < 130 for block in reader.blocks)
            assert 180 < len(reader.history) < 320


async def test_a_meeting() -> None:
    stand_in = StandIn()
    known = correctors(0.15, 32)
    async with stand_in.server as server, Client(server.url) as client:
        session = QualitySession(client, Words(), head(), CONTEXTS, known, 3, Console(quiet=True))
        await session.run(1, None)
        asked = server.asked("/generate")
    encode = Words()
    meeting = readers(0, encode)
    # Four blocks in three contexts, and three readers with three exact requests and fifteen setups.
    assert len(asked) == 4 * 3 + 3 * (3 + 15)
    by_producer = asked[8:12]
    assert by_producer[0].body["input_ids"][: len(meeting[0].blocks[0].tokens)] == list(
        meeting[0].blocks[0].tokens
    )
    spans = [
        request.body["sampling_params"]["custom_params"]["hive_segments"]["spans"] for request in by_producer
    ]
    assert [span["context"] for (span,) in spans] == ["standalone", "producer", "producer", "producer"]
    assert [span["start"] for (span,) in spans] == [
        0,
        *(len(block.history) for block in meeting[0].blocks[1:]),
    ]
    with_spans = [request for request in asked if "custom_params" in request.body["sampling_params"]]
    without = [request for request in asked if "custom_params" not in request.body["sampling_params"]]
    # What is computed as usual must not be found by what shall be placed, and the other way round.
    assert all("extra_key" not in request.body for request in with_spans)
    assert len({request.body["extra_key"] for request in without}) == len(without) == 9
    first = without[0].body["sampling_params"]
    assert (first["max_new_tokens"], first["ignore_eos"], first["sampling_seed"]) == (FORCED, True, 3000)
    forced = without[1].body["input_ids"][len(meeting[0].prompt) :]
    assert len(forced) == FORCED - 1
    assert all(request.body["input_ids"][-FORCED + 1 :] == forced for request in asked[13:30])

    assert set(session.readings) == {
        Setup("exact"),
        Setup("dropped"),
        *(Setup("segments", context, name) for context in CONTEXTS for name in known),
    }
    rows = {(row.arm, row.context, row.corrector): row for row in quality_rows(session.readings)}
    exact, all_again = rows["exact", None, None], rows["segments", "producer", "recompute-all"]
    assert exact.kl_mean == pytest.approx(0, abs=1e-9)
    assert (exact.top1, exact.reuse_rate, exact.tokens_recomputed) == (1.0, None, None)
    assert all_again.tokens_recomputed == 1.0
    assert all_again.hidden_error == pytest.approx(0, abs=1e-6)
    placed, corrected = rows["segments", "neutral", "none"], rows["segments", "neutral", "first-k"]
    assert placed.tokens_recomputed == 0.0
    assert corrected.tokens_recomputed == pytest.approx(0.15, abs=0.001)
    assert placed.kl_mean is not None
    assert corrected.kl_mean is not None
    assert placed.kl_mean > corrected.kl_mean > 0
    assert placed.reuse_rate is not None
    assert placed.exact_rate is not None
    assert placed.reuse_rate + placed.exact_rate == pytest.approx(1.0)
    assert (placed.readers, placed.positions) == (3, 150)
    assert placed.kl_interval is not None
    assert placed.kl_interval.low <= placed.kl_mean <= placed.kl_interval.high
    assert (placed.ttft_ratio, placed.e2e_ratio, placed.problems) == (None, None, None)


async def test_meetings_end_in_time_and_the_first_one_is_held_anyway() -> None:
    stand_in = StandIn()
    async with stand_in.server as server, Client(server.url) as client:
        session = QualitySession(
            client, Words(), head(), ["standalone"], {"none": "none"}, 0, Console(quiet=True)
        )
        await session.run(3, 0.0)
    assert session.left_out == {"quality, last 2 of 3 rounds": "there was no time"}
    assert [reading.agent for reading in session.readings[Setup("exact")]] == [0, 1, 2]


async def test_a_server_that_ignores_segments_is_found_out() -> None:
    stand_in = StandIn()
    generate = stand_in.generate

    def ignorant(request: Received):  # type: ignore[no-untyped-def]
        request.body["sampling_params"].pop("custom_params", None)
        return generate(request)

    stand_in.server.routes["POST /generate"] = ignorant
    async with stand_in.server as server, Client(server.url) as client:
        session = QualitySession(
            client, Words(), head(), ["standalone"], {"none": "none"}, 0, Console(quiet=True)
        )
        with pytest.raises(BenchError, match="no account of its KV segments"):
            await session.run(1, None)
