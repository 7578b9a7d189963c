"""Teaching a model to say under choreographed attention what it said under the baseline, and how well it does.

The distillation of the Prompt Choreography paper (section 3.2): the log-loss of the outputs of a trace's decodes, when
choreographed calls are forced to say them, goes down along its gradient through the whole workflow.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bench.roles.choreographed import logits, plan
from bench.roles.lora import Settings, descend
from bench.roles.low_rank import adapt, without
from bench.roles.traces import Trace, read_whole, size_of


@dataclass(frozen=True)
class Likeness:
    """How near a model comes to what made the traces: means over the tokens of their outputs."""

    nats: float
    """Log-loss of the output tokens."""
    kl_nats: float
    """KL divergence from the distribution that the token was drawn from to the model's."""
    same_first: float
    """Share of the tokens at which both think the same one the likeliest."""


@dataclass(frozen=True)
class Fidelity:
    """How a model does on traces, in both ways to run a workflow."""

    traces: int
    tokens: int
    """Of the outputs."""
    baseline_nats: float
    """Log-loss of the model that made the traces, reading whole prompts: what nobody can be better at but by chance."""
    choreographed: Likeness
    exact: Likeness
    """The model itself, adapter and all, when it reads whole prompts: what learning the one did to the other."""


def teach(model: Any, traces: Sequence[Trace], settings: Settings, say: Callable[[str], None]) -> list[float]:
    """Put an adapter into a causal language model and train it; returns each step's loss in nats per output token.

    A step has `Settings.batch` traces, and no more than `Settings.tokens` tokens.

    Raises:
        ValueError: when there are no traces, or one is longer than all the tokens of a step.
    """
    if not traces:
        raise ValueError("there are no traces")
    torch.manual_seed(settings.seed)
    adapter = adapt(model, settings.rank)
    return descend(
        adapter,
        [size_of(trace) for trace in traces],
        lambda numbers: loss(model, [traces[number] for number in numbers]),
        settings,
        random.Random(settings.seed),
        say,
    )


def loss(model: Any, traces: Sequence[Trace]) -> Tensor:
    """Log-loss of the outputs of all decodes under choreographed attention, in nats per token."""
    made = plan(traces, model.device)
    return torch.nn.functional.cross_entropy(logits(model, made), made.output)


@torch.inference_mode()
def fidelity(model: Any, traces: Sequence[Trace]) -> Fidelity:
    """How near the model comes, with its adapter if it has one, to what it was without, which made the traces."""
    sums = torch.zeros(7, dtype=torch.float64)
    for trace in traces:
        choreographed, whole = plan([trace], model.device), plan([read_whole(trace)], model.device)
        with without(model):
            reference = logits(model, whole).log_softmax(-1)
        drawn = reference.gather(1, whole.output[:, None])
        ways = [_likeness(logits(model, made), reference, made.output) for made in (choreographed, whole)]
        of_trace = torch.stack([-drawn.sum(), *ways[0], *ways[1]])
        sums += of_trace.double().cpu()
    tokens = sum(len(call.output) for trace in traces for call in trace)
    baseline, *means = (sums / tokens).tolist()
    return Fidelity(len(traces), tokens, baseline, Likeness(*means[:3]), Likeness(*means[3:]))


def _likeness(found: Tensor, reference: Tensor, output: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The sums of what a `Likeness` has the means of; ``found`` and ``reference`` are [n, vocabulary]."""
    said = found.log_softmax(-1)
    return (
        -said.gather(1, output[:, None]).sum(),
        (reference.exp() * (reference - said)).sum(),
        (said.argmax(-1) == reference.argmax(-1)).sum().float(),
    )
