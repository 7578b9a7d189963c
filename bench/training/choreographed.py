"""A Llama under choreographed attention, as one differentiable computation of all messages of some workflows.

A message is encoded once, by the call that makes it: its tokens see those of its parents and its own earlier ones.
A call that has it for a parent sees its keys and values unchanged, the keys rotated to where the message stands in that
call (Prompt Choreography, sections 2.3 and 2.4). At each layer the keys of a message follow from its own hidden states
below that layer, so all messages go through the layers together, whatever their order, and a gradient flows back
through every prefill and every decode that a message saw. It follows the same arithmetic as a server that makes one
message after the other; the outputs of the decodes are given (teacher forcing).

Keys are kept as they are before any rotation, and rotated once to each position that they are read at, which is what
equal to rotating them to the position they were made at, and from there by the difference.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from bench.training.lora import body_of, padded
from bench.training.traces import Call, Trace


@dataclass(frozen=True)
class Reading:
    """Calls of about as much context, which attend together; m calls of at most q tokens, which see at most k."""

    rows: Tensor
    """[m, q] int64, which tokens of the batch read; padded at the end of each row."""
    keys: Tensor
    """[m, k] int64, the tokens that are read: those of the parents, then the message's own."""
    at: Tensor
    """[m, k] int64, where they stand in the call."""
    visible: Tensor
    """[m, q, k] bool, which key each token sees; at least one, so that padding is nothing that is no number."""

    def mask(self, sharing: int, dtype: torch.dtype) -> Tensor:
        """What is added to the scores of so many heads that share a key, [m, 1, sharing * q, k]."""
        hidden = torch.zeros(self.visible.shape, dtype=dtype, device=self.visible.device)
        return hidden.masked_fill_(~self.visible, -torch.inf).repeat(1, sharing, 1)[:, None]


@dataclass(frozen=True)
class Plan:
    """All tokens of some traces, t in number, and who sees whom. Tensors are on one device."""

    ids: Tensor
    """[t] int64."""
    positions: Tensor
    """[t] int64, where each stands in the call that makes it."""
    readings: list[Reading]
    order: Tensor
    """[t] int64, for each token its place among the rows of all readings, one after the other, padding counted."""
    before: Tensor
    """[n] int64, the tokens behind which the output tokens of the decodes come."""
    output: Tensor
    """[n] int64, the ids of those output tokens."""

    @property
    def positions_end(self) -> int:
        """One more than the last position that anything stands at."""
        return 1 + int(max(self.positions.max(), *(reading.at.max() for reading in self.readings)))


def plan(traces: Sequence[Trace], device: torch.device) -> Plan:
    """What `logits` needs to know of some traces.

    Raises `ValueError` when a message is empty, or has output and no header.
    """
    calls = [(trace, call) for trace in traces for call in trace]
    if any(not call.tokens or (call.output and not call.given) for _, call in calls):
        raise ValueError("a message needs tokens, and one that is decoded a header")
    ends = list(accumulate(len(call.tokens) for _, call in calls))
    firsts = [0, *ends[:-1]]
    of_trace = list(accumulate((len(trace) for trace in traces), initial=0))
    first_call = [of_trace[number] for number, trace in enumerate(traces) for _ in trace]

    alike: dict[int, list[int]] = defaultdict(list)
    contexts: list[tuple[list[int], list[int]]] = []
    for number, (trace, call) in enumerate(calls):
        keys: list[int] = []
        at: list[int] = []
        for parent, start in zip(call.parents, call.starts, strict=True):
            first, length = firsts[first_call[number] + parent], len(trace[parent].tokens)
            keys += range(first, first + length)
            at += range(start, start + length)
        keys += range(firsts[number], ends[number])
        at += range(call.start, call.start + len(call.tokens))
        contexts.append((keys, at))
        # Within a power of two: less than half of what is attended to is padding.
        alike[len(keys).bit_length()].append(number)

    readings = [
        _reading(
            [contexts[number] for number in some],
            [range(firsts[number], ends[number]) for number in some],
            device,
        )
        for some in alike.values()
    ]
    order = torch.empty(ends[-1], dtype=torch.long)
    place = 0
    for some, reading in zip(alike.values(), readings, strict=True):
        for number in some:
            order[firsts[number] : ends[number]] = place + torch.arange(ends[number] - firsts[number])
            place += reading.rows.shape[1]
    outputs = [
        (firsts[number] + call.given - 1 + behind, token)
        for number, (_, call) in enumerate(calls)
        for behind, token in enumerate(call.output)
    ]
    before, output = torch.tensor(outputs, dtype=torch.long, device=device).reshape(-1, 2).unbind(1)
    return Plan(
        ids=torch.tensor([token for _, call in calls for token in call.tokens], device=device),
        positions=torch.cat([_positions(call) for _, call in calls]).to(device),
        readings=readings,
        order=order.to(device),
        before=before,
        output=output,
    )


def _positions(call: Call) -> Tensor:
    return torch.arange(call.start, call.start + len(call.tokens))


def _reading(
    contexts: Sequence[tuple[list[int], list[int]]], own: Sequence[range], device: torch.device
) -> Reading:
    rows = padded(own, device)
    keys = padded([keys for keys, _ in contexts], device)
    # Those of the parents are seen by all, and of its own a token sees those up to itself.
    of_parents = [len(keys) - len(some) for (keys, _), some in zip(contexts, own, strict=True)]
    last_seen = torch.tensor(of_parents, device=device)[:, None] + torch.arange(rows.shape[1], device=device)
    return Reading(
        rows=rows,
        keys=keys,
        at=padded([at for _, at in contexts], device),
        visible=torch.arange(keys.shape[1], device=device) <= last_seen[:, :, None],
    )


def logits(model: Any, plan: Plan) -> Tensor:
    """What a causal language model of the Llama architecture says at each output token, [n, vocabulary] float32.

    With an adapter in it or without; gradients flow to all of its parameters that want some.
    """
    body = body_of(model)
    last = body.norm(_hidden(body, plan)[plan.before])
    found: Tensor = model.get_output_embeddings()(last)
    return found.float()


def _hidden(body: Any, plan: Plan) -> Tensor:
    """What the last layer makes of the tokens, before the last norm, [t, size]."""
    size = body.config.head_dim
    everywhere = torch.arange(plan.positions_end, device=plan.ids.device)[None]
    # In float32, whatever the model's type is: only that is read of the first argument.
    cos, sin = (part[0] for part in body.rotary_emb(torch.zeros((), device=plan.ids.device), everywhere))
    own = cos[plan.positions], sin[plan.positions]
    hidden: Tensor = body.embed_tokens(plan.ids)
    # The same at every layer, and kept for the gradient only once.
    sharing = body.config.num_attention_heads // body.config.num_key_value_heads
    seen = [
        _Seen(cos[reading.at], sin[reading.at], reading.mask(sharing, hidden.dtype))
        for reading in plan.readings
    ]
    for layer in body.layers:
        attention = layer.self_attn
        normed = layer.input_layernorm(hidden)
        queries = _rotated(attention.q_proj(normed).unflatten(-1, (-1, size)), *own)
        keys = attention.k_proj(normed).unflatten(-1, (-1, size))
        values = attention.v_proj(normed).unflatten(-1, (-1, size))
        read = [
            _read(reading, what, queries, keys, values)
            for reading, what in zip(plan.readings, seen, strict=True)
        ]
        hidden = hidden + attention.o_proj(_taken(torch.cat(read), plan.order))
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    return hidden


class _Seen(NamedTuple):
    """What all layers of a model know of the keys of a reading."""

    cos: Tensor
    """[m, k, size] float32, of where they stand; so is ``sin``."""
    sin: Tensor
    mask: Tensor
    """[m, 1, sharing * q, k]."""


def _read(reading: Reading, seen: _Seen, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """What the rows of a reading get from attention, [m * q, heads * size]; of padding, nothing that is of use.

    ``queries`` are [t, heads, size], rotated; ``keys`` and ``values`` [t, kv_heads, size], the keys as they are without
    position.
    """
    calls, longest = reading.rows.shape
    heads, kv_heads = queries.shape[1], keys.shape[1]
    # Heads that share a key are more rows of queries to it, [m, kv_heads, sharing * q, size]: nothing is repeated.
    sharing = heads // kv_heads
    rows = _taken(queries, reading.rows).view(calls, longest, kv_heads, sharing, -1).permute(0, 2, 3, 1, 4)
    mixed = scaled_dot_product_attention(
        rows.flatten(2, 3),
        _rotated(_taken(keys, reading.keys), seen.cos, seen.sin).transpose(1, 2),
        _taken(values, reading.keys).transpose(1, 2),
        attn_mask=seen.mask,
    )
    by_token = mixed.view(calls, kv_heads, sharing, longest, -1).permute(0, 3, 1, 2, 4)
    return by_token.reshape(calls * longest, -1)


def _taken(of_tokens: Tensor, places: Tensor) -> Tensor:
    """Rows of a tensor at some places, in the shape of those; its gradient adds up quickly, unlike that of indexing."""
    return of_tokens.index_select(0, places.flatten()).view(*places.shape, *of_tokens.shape[1:])


def _rotated(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Queries or keys [..., heads, size] at positions of given angles [..., size]; computed in float32."""
    wide = heads.float()
    first, second = wide.chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    return (wide * cos[..., None, :] + turned * sin[..., None, :]).to(heads.dtype)
