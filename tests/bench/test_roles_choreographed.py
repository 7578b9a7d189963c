"""Choreographed attention as one computation, against the library's own forward pass and key-value cache."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the server extra: uv pip install 'hive[server]'")
transformers = pytest.importorskip(
    "transformers", reason="needs the server extra: uv pip install 'hive[server]'"
)

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from bench.training.choreographed import logits, plan  # noqa: E402
from bench.training.traces import Call, Trace, arranged, read_whole  # noqa: E402

CPU = torch.device("cpu")
VOCABULARY = 64


def tiny_model(rope: dict[str, Any] | None = None) -> Any:
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=512,
        initializer_range=0.3,
        rope_parameters=rope,
    )
    return transformers.LlamaForCausalLM(config).eval()


MODEL = tiny_model()


def words(count: int, first: int = 0) -> tuple[int, ...]:
    return tuple((7 * (first + place) + 3) % VOCABULARY for place in range(count))


def decode(
    length: int, given: int, lengths: tuple[int, ...] = (), parents: tuple[int, ...] = (), **where: Any
) -> Call:
    """A decode behind parents of some lengths."""
    starts, start = arranged(lengths, where.get("offsets"), where.get("new_offset"))
    return Call(words(length, first=start + length), given, parents, starts, start, end=2)


def turned(keys: Any, by: int, model: Any) -> Any:
    """Rotated keys [1, heads, n, size] as they are some positions further on, which may be negative."""
    angles = by * model.model.rotary_emb.inv_freq
    cos, sin = (torch.cat([part, part]) for part in (angles.cos(), angles.sin()))
    first, second = keys.chunk(2, -1)
    return keys * cos + torch.cat([-second, first], -1) * sin


def step_by_step(model: Any, trace: Trace) -> Any:
    """What `logits` says, from a cache for each message, filled as a server would: a header at once, then token after
    token. A parent's keys are turned from where they were made to where they are read."""
    made: list[list[tuple[Any, Any]]] = []
    found = []
    for call in trace:
        cache = transformers.DynamicCache()
        for layer in range(model.config.num_hidden_layers):
            for parent, start in zip(call.parents, call.starts, strict=True):
                keys, values = made[parent][layer]
                cache.update(turned(keys, start - trace[parent].start, model), values, layer)
        before = cache.get_seq_length()
        pieces = [call.tokens[: call.given], *((token,) for token in call.tokens[call.given :])]
        position = call.start
        for piece in pieces:
            out = model(
                torch.tensor([piece]),
                position_ids=torch.arange(position, position + len(piece))[None],
                past_key_values=cache,
                use_cache=True,
            ).logits[0]
            position += len(piece)
            if call.output:
                found.append(out[-1])
        if call.output and call.end is None:
            found.pop()
        made.append([(layer.keys[:, :, before:], layer.values[:, :, before:]) for layer in cache.layers])
    return torch.stack(found)


def off(found: Any, expected: Any) -> float:
    assert found.shape == expected.shape
    return float((found - expected).abs().max())


@torch.inference_mode()
def said(model: Any, *traces: Trace) -> Any:
    return logits(model, plan(traces, CPU))


@torch.inference_mode()
def test_a_call_without_parents_is_an_ordinary_forward_pass() -> None:
    trace = (decode(20, 5),)
    expected = MODEL(torch.tensor([trace[0].tokens])).logits[0, 4:]
    assert expected.std() > 1
    assert off(said(MODEL, trace), expected) < 1e-4
    # Only differences of positions matter.
    assert off(said(MODEL, (replace(trace[0], start=100),)), expected) < 1e-4


@torch.inference_mode()
def test_a_chain_whose_parents_are_the_prefix_is_a_full_prefill() -> None:
    system = Call(words(9), 9)
    task = Call(words(6, first=9), 6, (0,), (0,), 9)
    answer = decode(12, 3, (9, 6), (0, 1))
    last = decode(7, 2, (9, 6, 12), (0, 1, 2))
    trace = (system, task, answer, last)
    whole = torch.tensor([[token for call in trace for token in call.tokens]])
    of_all = MODEL(whole).logits[0]
    expected = torch.cat([of_all[17:27], of_all[28:34]])
    assert expected.std() > 1
    assert off(said(MODEL, trace), expected) < 1e-4
    # The baseline reads the same text, so for a chain both are alike.
    assert off(said(MODEL, trace), said(MODEL, read_whole(trace))) < 1e-4


REORDERED: Trace = (
    Call(words(5), 5),
    Call(words(8, first=3), 8),
    decode(6, 2, (5, 8), (0, 1)),
    # The same parent at other places: reordered, behind a gap, and over another one.
    decode(9, 3, (8, 6, 5), (1, 2, 0)),
    decode(4, 2, (6, 9), (2, 3), offsets=(40, None), new_offset=90),
    decode(5, 1, (5, 8, 4), (0, 1, 4), offsets=(0, 0, 3)),
    Call(words(3, first=1), 3, (5,), (2,), 20),
    # A message before its parent, which still sees all of it.
    decode(5, 2, (3, 9), (6, 3), offsets=(60, 10), new_offset=0),
)


@torch.inference_mode()
def test_reordered_and_gapped_parents_are_read_as_from_a_cache_for_each_message() -> None:
    found, expected = said(MODEL, REORDERED), step_by_step(MODEL, REORDERED)
    assert off(found, expected) < 1e-4
    # And it is not what a full prefill says.
    assert off(found, said(MODEL, read_whole(REORDERED))) > 0.1


@torch.inference_mode()
def test_scaled_angles_are_the_models_own() -> None:
    model = tiny_model(
        {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    )
    assert off(said(model, REORDERED), step_by_step(model, REORDERED)) < 1e-4
    assert off(said(model, REORDERED), said(MODEL, REORDERED)) > 0.01


@st.composite
def workflows(draw: st.DrawFn) -> Trace:
    """Calls with parents, orders and places by lot."""
    trace: list[Call] = []
    for number in range(draw(st.integers(1, 6))):
        length = draw(st.integers(1, 12))
        given = draw(st.integers(1, length))
        parents = tuple(draw(st.lists(st.integers(0, number - 1), max_size=3, unique=True)) if number else [])
        offset = st.none() | st.integers(0, 80)
        starts, start = arranged(
            [len(trace[parent].tokens) for parent in parents],
            [draw(offset) for _ in parents],
            draw(offset),
        )
        end = draw(st.sampled_from([None, 2]))
        tokens = tuple(draw(st.lists(st.integers(0, VOCABULARY - 1), min_size=length, max_size=length)))
        trace.append(Call(tokens, given, parents, starts, start, end))
    return tuple(trace)


@settings(max_examples=30, deadline=None)
@given(workflows())
@torch.inference_mode()
def test_any_workflow_is_what_it_is_step_by_step(trace: Trace) -> None:
    made = plan([trace], CPU)
    assert made.output.tolist() == [token for call in trace for token in call.output]
    if made.output.numel():
        assert off(logits(MODEL, made), step_by_step(MODEL, trace)) < 1e-4


@settings(max_examples=15, deadline=None)
@given(workflows(), workflows())
@torch.inference_mode()
def test_traces_of_a_batch_do_not_see_each_other(one: Trace, other: Trace) -> None:
    together = said(MODEL, one, other)
    alone = torch.cat([said(MODEL, one), said(MODEL, other)])
    assert together.numel() == 0 or off(together, alone) < 1e-4


def test_gradients_flow_through_messages_that_are_only_read() -> None:
    """By comparison with differences: the loss of one decode moves with a weight through everything it has seen."""
    model = tiny_model().double()
    weight = model.model.layers[0].self_attn.k_proj.weight

    def loss() -> Any:
        made = plan([REORDERED], CPU)
        return torch.nn.functional.cross_entropy(logits(model, made), made.output)

    loss().backward()
    step = torch.zeros_like(weight)
    step[3, 5] = 1e-3
    with torch.no_grad():
        weight += step
        above = loss()
        weight -= 2 * step
        below = loss()
    slope = float((above - below) / 2e-3)
    assert abs(slope) > 1e-4
    assert float(weight.grad[3, 5]) == pytest.approx(slope, rel=1e-2)


def test_the_encoding_of_a_prefilled_parent_is_trained_through() -> None:
    model = tiny_model()
    trace = (Call((60, 61), 2), Call((5, 6, 7), 1, (0,), (0,), 2))
    made = plan([trace], CPU)
    torch.nn.functional.cross_entropy(logits(model, made), made.output).backward()
    # Tokens that only the parent has: nothing but its keys and values leads there.
    of_parent = model.model.embed_tokens.weight.grad[[60, 61]]
    assert bool((of_parent.abs().amax(-1) > 0).all())


def test_padding_adds_nothing_to_a_gradient() -> None:
    long, short = (decode(40, 3),), (decode(33, 30),)
    gradients = []
    for batches in ([[long, short]], [[long], [short]]):
        model = tiny_model()
        for traces in batches:
            made = plan(traces, CPU)
            torch.nn.functional.cross_entropy(logits(model, made), made.output, reduction="sum").backward()
        gradients.append(torch.cat([weight.grad.flatten() for weight in model.parameters()]))
    assert len(plan([long, short], CPU).readings) == 1
    assert bool(gradients[0].isfinite().all())
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-4, rtol=1e-3)


def test_a_message_without_tokens_or_header_is_refused() -> None:
    for call in (Call((), 0), Call((1, 2), 0), Call((), 0, end=2)):
        with pytest.raises(ValueError, match="a message needs tokens"):
            plan([(call,)], CPU)


def test_parents_stand_behind_each_other_unless_told_otherwise() -> None:
    assert arranged((3, 4), None, None) == ((0, 3), 7)
    assert arranged((3, 4), (None, 10), None) == ((0, 10), 14)
    assert arranged((3, 4, 5), (20, None, 0), None) == ((20, 23, 0), 5)
    assert arranged((3,), (5,), 1) == ((5,), 1)
    assert arranged((), None, None) == ((), 0)
    assert arranged((), (), 9) == ((), 9)
    with pytest.raises(ValueError, match="2 parents have 1 offsets"):
        arranged((3, 4), (0,), None)
    for offsets, new_offset in (((-1,), None), ((0,), -2)):
        with pytest.raises(ValueError, match="0 or more"):
            arranged((3,), offsets, new_offset)


def test_the_baseline_reads_each_decode_as_one_text() -> None:
    system, task = Call((1, 2), 2), Call((3,), 1)
    answer = Call((4, 5, 6), 1, (1, 0), (50, 0), 7, end=2)
    cut = Call((7, 8), 1, (2,), (0,), 3)
    assert read_whole((system, task, answer, cut)) == (
        Call((3, 1, 2, 4, 5, 6), 4, end=2),
        Call((4, 5, 6, 7, 8), 4),
    )
